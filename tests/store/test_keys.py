"""Keys go there and back, and their order is the order of what they name."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.store import keys
from app.store.contract import check_key
from app.store.keys import LogName

TENANTS = st.from_regex(r"[a-z0-9][a-z0-9-]{0,62}", fullmatch=True)
IDS = st.from_regex(r"[0-9a-f]{32}", fullmatch=True)
LOGS = st.builds(LogName, TENANTS, st.none() | IDS)
GENERATIONS = st.integers(0, 10**8 - 1)
OFFSETS = st.integers(0, 10**16 - 1)


@given(LOGS, GENERATIONS, OFFSETS)
def test_segments_go_there_and_back(log: LogName, gen: int, offset: int) -> None:
    for key in (keys.segment(log, gen, offset), keys.compacted(log, gen, offset)):
        assert keys.parse_segment(check_key(key)) == (log, gen, offset)
    assert keys.segment(log, gen, offset).startswith(keys.segment_prefix(log, gen))
    assert keys.compacted(log, gen, offset).startswith(keys.compacted_prefix(log, gen))
    assert keys.segment(log, gen, offset) != keys.compacted(log, gen, offset)


@given(LOGS, st.tuples(GENERATIONS, OFFSETS), st.tuples(GENERATIONS, OFFSETS))
def test_listing_order_is_log_order(log: LogName, one: tuple[int, int], other: tuple[int, int]) -> None:
    assert (keys.segment(log, *one) < keys.segment(log, *other)) == (one < other)
    assert (keys.pending("t", "s", *one) < keys.pending("t", "s", *other)) == (one < other)


@given(TENANTS, IDS, GENERATIONS, OFFSETS)
def test_pending_inputs_go_there_and_back(tenant: str, session: str, gen: int, offset: int) -> None:
    key = keys.pending(tenant, session, gen, offset)
    assert keys.parse_pending(check_key(key)) == (tenant, session, gen, offset)
    assert key.startswith(keys.pending_prefix(tenant, session))
    assert key.startswith(keys.pending_prefix(tenant))


@given(LOGS)
def test_log_names_go_there_and_back(log: LogName) -> None:
    assert keys.parse_log_name(log.text) == log
    check_key(keys.head_object(log))


@given(TENANTS, st.text(min_size=1, max_size=20))
def test_any_login_has_a_key_of_its_own(tenant: str, login: str) -> None:
    key = keys.user(tenant, login)
    assert keys.parse_user(check_key(key)) == login
    assert key.startswith(keys.users_prefix(tenant))


def test_the_layout_of_the_design() -> None:
    log, workspace = LogName("acme", "0" * 32), LogName("acme", None)
    sha = "ab" * 32
    assert keys.session_json("acme", "s1") == "tenants/acme/sessions/s1/session.json"
    assert keys.head_object(log) == f"tenants/acme/sessions/{'0' * 32}/session.json"
    assert keys.head_object(workspace) == "tenants/acme/workspace/workspace.json"
    assert keys.segment(log, 1, 20) == f"tenants/acme/sessions/{'0' * 32}/log/00000001/0000000000000020"
    assert keys.segment(workspace, 0, 7) == "tenants/acme/workspace/log/00000000/0000000000000007"
    assert keys.checkpoint("acme", "s1", "c1") == "tenants/acme/sessions/s1/checkpoints/c1.json"
    assert keys.native_chunk("acme", sha) == f"tenants/acme/native/{sha}"
    assert keys.pending("acme", "s1", 2, 3) == "tenants/acme/pending/s1/00000002-0000000000000003"
    assert keys.task("acme", "t1") == "tenants/acme/tasks/t1/task.json"
    assert keys.task("acme", "t1", "bundles/4") == "tenants/acme/tasks/t1/bundles/4"
    assert keys.project("acme", "p1") == "tenants/acme/projects/p1/project.json"
    assert keys.inbox("acme", "i1") == "tenants/acme/inbox/i1.json"
    assert keys.user("acme", "ann@example.com") == "tenants/acme/users/ann@example.com.json"
    assert keys.blob("acme", "b1") == "tenants/acme/blobs/b1"
    assert keys.token(sha) == f"tokens/{sha}.json"
    assert log.text == f"s:acme:{'0' * 32}"
    assert workspace.text == "w:acme"


def test_children_of_prefixes_are_ids() -> None:
    assert keys.session_json("acme", "s1").removeprefix(keys.sessions_prefix("acme")) == "s1/session.json"
    assert keys.sessions_prefix("acme").removeprefix(keys.tenants_prefix()) == "acme/sessions/"
    assert keys.last_part(keys.inbox("acme", "i1")) == "i1"


@pytest.mark.parametrize("tenant", ["", "-a", "A", "a/b", "a.b", "..", "a\n", "a" * 64, "ä"])
def test_names_that_are_no_tenants(tenant: str) -> None:
    assert not keys.valid_tenant(tenant)
    with pytest.raises(ValueError, match="tenant"):
        keys.sessions_prefix(tenant)


@pytest.mark.parametrize("name", ["", "..", ".", ".x", "a/b", "a\n", "a" * 129, "a b"])
def test_names_that_are_no_ids(name: str) -> None:
    for build in (keys.session_json, keys.task, keys.project, keys.inbox, keys.blob, keys.executor):
        with pytest.raises(ValueError, match="part of a key"):
            build("acme", name)


@pytest.mark.parametrize(
    ("build", "arguments"),
    [
        (keys.segment, (LogName("t", None), -1, 0)),
        (keys.segment, (LogName("t", None), 0, -1)),
        (keys.segment, (LogName("t", None), 10**8, 0)),
        (keys.pending, ("t", "s", 0, 10**16)),
        (keys.native_chunk, ("t", "ab")),
        (keys.token, ("AB" * 32,)),
        (keys.user, ("t", "")),
        (keys.user, ("t", "ä" * 50)),
        (keys.parse_log_name, ("x:t",)),
        (keys.parse_log_name, ("w:t:s",)),
        (keys.parse_log_name, ("s:t",)),
        (keys.parse_segment, ("tenants/t/sessions/s/log/1/2",)),
        (keys.parse_segment, ("tenants/T/workspace/log/00000001/0000000000000002",)),
        (keys.parse_segment, ("x/tenants/t/workspace/log/00000001/0000000000000002",)),
        (keys.parse_segment, ("tenants/t/workspace/log/00000001/0000000000000002\n",)),
        (keys.parse_pending, ("tenants/t/pending/s/1-2",)),
    ],
)
def test_what_is_not_a_key(build: Any, arguments: tuple[Any, ...]) -> None:
    with pytest.raises(ValueError):
        build(*arguments)
