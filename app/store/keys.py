"""Every key of the object store, built and parsed here and nowhere else.

Rules: numbers are zero-padded (generation 8 digits, offset 16), so that listing order is log order; ids are as `core.ids` makes
them; what users named is percent-encoded; a parser raises ValueError for a key that its builder couldn't have made. The
layout is the same in a bucket and in a directory. `docs/store.md` shows it whole.
"""

from __future__ import annotations

import hashlib
import re
from typing import NamedTuple
from urllib.parse import quote, unquote

from app.core import ids

GENERATION_DIGITS = 8
OFFSET_DIGITS = 16

_TENANT = re.compile(r"[a-z0-9][a-z0-9-]{0,62}\Z")
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}\Z")
_SHA256 = re.compile(r"[0-9a-f]{64}\Z")
_SEGMENT = re.compile(
    r"tenants/(?P<tenant>[^/]+)/(?:sessions/(?P<session>[^/]+)|workspace)/(?:log|compact)/(?P<gen>[0-9]{8})/(?P<offset>[0-9]{16})\Z"
)
_TRASHED = re.compile(r"tenants/(?P<tenant>[^/]+)/trash/(?P<run>[^/]+)/(?P<rest>.+)\Z")
_OWNER = re.compile(r"(tenants/[^/]+/(?:tasks|projects)/[^/]+)/(?:task|project)\.json\Z")
_PENDING = re.compile(r"tenants/(?P<tenant>[^/]+)/pending/(?P<session>[^/]+)/(?P<gen>[0-9]{8})-(?P<offset>[0-9]{16})\Z")


class LogName(NamedTuple):
    """Which log: a session's, or (with `session` None) the tenant's workspace log."""

    tenant: str
    session: str | None

    @property
    def text(self) -> str:
        """The name in Redis keys and channels: `s:{tenant}:{session}` or `w:{tenant}`."""
        return f"w:{self.tenant}" if self.session is None else f"s:{self.tenant}:{self.session}"


class Segment(NamedTuple):
    """What a segment's key says: the log, the generation, the offset of the first event."""

    log: LogName
    gen: int
    offset: int


class Pending(NamedTuple):
    """What the key of a pending input says."""

    tenant: str
    session: str
    gen: int
    offset: int


class Trashed(NamedTuple):
    """What the key of an object in the trash says: by which run it was put there, and the key that it had."""

    tenant: str
    run: str
    key: str


def parse_log_name(text: str) -> LogName:
    """The inverse of `LogName.text`. Raises ValueError."""
    kind, _, rest = text.partition(":")
    tenant, colon, session = rest.partition(":")
    log = LogName(_tenant(tenant), _name(session) if colon else None)
    if log.text != text or kind not in ("s", "w"):
        raise ValueError(f"not the name of a log: {text[:200]!r}")
    return log


def valid_tenant(name: str) -> bool:
    """Whether `name` can be a tenant: 1 to 63 of a-z, 0-9 and "-", not starting with "-"."""
    return bool(_TENANT.match(name))


def is_name(text: str) -> bool:
    """Whether `text` can name an object at all; what can't, names none."""
    return bool(_NAME.match(text))


def is_id(text: str) -> bool:
    """Whether `text` is an id as `core.ids` makes them."""
    return ids.normal(text) == text


# Logs


def session_json(tenant: str, session: str) -> str:
    """The object that says what a session's log consists of."""
    return f"{_session(tenant, session)}/session.json"


def head_object(log: LogName) -> str:
    """The object that holds the chain of `log`'s generations: `session.json` or `workspace.json`."""
    return f"{_base(log)}/{'workspace' if log.session is None else 'session'}.json"


def segment(log: LogName, gen: int, offset: int) -> str:
    """The segment (or fence) of `log` whose first event is at `offset` in generation `gen`."""
    return f"{segment_prefix(log, gen)}{_number(offset, OFFSET_DIGITS)}"


def segment_prefix(log: LogName, gen: int) -> str:
    """All segments of one generation, and nothing else, begin with it."""
    return f"{_base(log)}/log/{_number(gen, GENERATION_DIGITS)}/"


def compacted(log: LogName, gen: int, offset: int) -> str:
    """A large segment made of small ones; `offset` is that of its first event."""
    return f"{compacted_prefix(log, gen)}{_number(offset, OFFSET_DIGITS)}"


def compacted_prefix(log: LogName, gen: int) -> str:
    """All large segments of one generation begin with it."""
    return f"{_base(log)}/compact/{_number(gen, GENERATION_DIGITS)}/"


def key_index(log: LogName, gen: int, offset: int) -> str:
    """The idempotency keys in the large segment at `compacted(log, gen, offset)`."""
    return f"{key_index_prefix(log, gen)}{_number(offset, OFFSET_DIGITS)}"


def key_index_prefix(log: LogName, gen: int) -> str:
    """All key indexes of one generation begin with it."""
    return f"{_base(log)}/keys/{_number(gen, GENERATION_DIGITS)}/"


def parse_segment(key: str) -> Segment:
    """The inverse of `segment` and `compacted`. Raises ValueError."""
    found = _SEGMENT.match(key)
    if not found:
        raise ValueError(f"not the key of a segment: {key[:200]!r}")
    session = found["session"]
    log = LogName(_tenant(found["tenant"]), None if session is None else _name(session))
    return Segment(log, int(found["gen"]), int(found["offset"]))


# What belongs to sessions


def pending(tenant: str, session: str, gen: int, offset: int) -> str:
    """An input that was accepted and isn't yet consumed by a settled turn."""
    return f"{pending_prefix(tenant, session)}{_number(gen, GENERATION_DIGITS)}-{_number(offset, OFFSET_DIGITS)}"


def pending_prefix(tenant: str, session: str | None = None) -> str:
    """All pending inputs of a tenant, or of one session, begin with it."""
    base = f"{_tenant_base(tenant)}/pending/"
    return base if session is None else f"{base}{_name(session)}/"


def parse_pending(key: str) -> Pending:
    """The inverse of `pending`. Raises ValueError."""
    found = _PENDING.match(key)
    if not found:
        raise ValueError(f"not the key of a pending input: {key[:200]!r}")
    return Pending(_tenant(found["tenant"]), _name(found["session"]), int(found["gen"]), int(found["offset"]))


def checkpoint(tenant: str, session: str, ckpt: str) -> str:
    """The manifest of a checkpoint's native state."""
    return f"{checkpoint_prefix(tenant, session)}{_name(ckpt)}.json"


def checkpoint_prefix(tenant: str, session: str) -> str:
    """All manifests of one session begin with it."""
    return f"{_session(tenant, session)}/checkpoints/"


def native_chunk(tenant: str, sha256: str) -> str:
    """A chunk of native state, by the SHA-256 (64 hex characters) of what it holds."""
    return f"{native_prefix(tenant)}{_sha256(sha256)}"


def native_prefix(tenant: str) -> str:
    """All native chunks of a tenant begin with it."""
    return f"{_tenant_base(tenant)}/native/"


def parse_native_chunk(key: str) -> str:
    """The SHA-256 in a key that `native_chunk` made. Raises ValueError."""
    return _sha256(key.rsplit("/", 1)[-1])


def session_prefix(tenant: str, session: str) -> str:
    """All objects of a session begin with it, but for its pending inputs and its chunks of native state."""
    return f"{_session(tenant, session)}/"


def trashed(tenant: str, run: str, key: str) -> str:
    """Where the tenant's object at `key` is while it is in the trash. Raises ValueError for the object of another."""
    base = f"{_tenant_base(tenant)}/"
    rest = key.removeprefix(base)
    if rest == key or rest.startswith("trash/"):
        raise ValueError(f"can't be put into the trash of {tenant}: {key[:200]!r}")
    return f"{trash_prefix(tenant, run)}{rest}"


def parse_trashed(key: str) -> Trashed:
    """The inverse of `trashed`. Raises ValueError."""
    found = _TRASHED.match(key)
    if not found:
        raise ValueError(f"not the key of an object in the trash: {key[:200]!r}")
    tenant = _tenant(found["tenant"])
    return Trashed(tenant, _name(found["run"]), f"{_tenant_base(tenant)}/{found['rest']}")


def trash_prefix(tenant: str, run: str | None = None) -> str:
    """Its immediate children are the runs that have put something into the tenant's trash; with `run`, what one has put there."""
    base = f"{_tenant_base(tenant)}/trash/"
    return base if run is None else f"{base}{_name(run)}/"


def tenant_of(key: str) -> str:
    """The tenant that owns a key. Raises ValueError for one that no tenant owns."""
    parts = key.split("/")
    if len(parts) < 3 or parts[0] != "tenants":
        raise ValueError(f"no tenant owns {key[:200]!r}")
    return _tenant(parts[1])


def sessions_prefix(tenant: str) -> str:
    """Its immediate children are a tenant's session ids."""
    return f"{_tenant_base(tenant)}/sessions/"


def tenants_prefix() -> str:
    """Its immediate children are the tenants."""
    return "tenants/"


# Entities


def project(tenant: str, project_id: str, name: str = "project.json") -> str:
    """A project's own object, or another one (`name`, e.g. a bundle) that belongs to it."""
    return f"{projects_prefix(tenant)}{_name(project_id)}/{_names(name)}"


def projects_prefix(tenant: str) -> str:
    """Its immediate children are a tenant's project ids."""
    return f"{_tenant_base(tenant)}/projects/"


def project_name(tenant: str, name: str) -> str:
    """The reservation of a project's name, which makes names unique in a tenant. Any name is allowed."""
    return f"{_tenant_base(tenant)}/project-names/{_sha256(hashlib.sha256(name.encode()).hexdigest())}.json"


def project_task(tenant: str, project_id: str, task_id: str) -> str:
    """Marks that a task belongs to a project: listing them is one listing, in the order of their ids."""
    return f"{project_tasks_prefix(tenant, project_id)}{_name(task_id)}"


def project_tasks_prefix(tenant: str, project_id: str) -> str:
    """All markers of a project's tasks begin with it."""
    return project(tenant, project_id, "tasks") + "/"


def task_session(tenant: str, task_id: str, session: str) -> str:
    """byre's record of an agent session of a task."""
    return f"{task_sessions_prefix(tenant, task_id)}{_name(session)}.json"


def task_sessions_prefix(tenant: str, task_id: str) -> str:
    """All records of a task's agent sessions begin with it."""
    return task(tenant, task_id, "sessions") + "/"


def snapshot(tenant: str, task_id: str, n: int) -> str:
    """The record of snapshot `n` of a task."""
    return f"{snapshots_prefix(tenant, task_id)}{_number(n, GENERATION_DIGITS)}.json"


def snapshots_prefix(tenant: str, task_id: str) -> str:
    """All snapshot records of a task begin with it."""
    return task(tenant, task_id, "snapshots") + "/"


def task(tenant: str, task_id: str, name: str = "task.json") -> str:
    """A task's own object, or another one (`name`, e.g. a bundle) that belongs to it."""
    return f"{tasks_prefix(tenant)}{_name(task_id)}/{_names(name)}"


def tasks_prefix(tenant: str) -> str:
    """Its immediate children are a tenant's task ids."""
    return f"{_tenant_base(tenant)}/tasks/"


def bundle(owner: str, seq: int) -> str:
    """The manifest of bundle `seq` of a task or project; `owner` is the key of its own object."""
    return f"{bundles_prefix(owner)}{_number(seq, GENERATION_DIGITS)}.json"


def bundles_prefix(owner: str) -> str:
    """All manifests of the bundles of a task or project begin with it."""
    return f"{check_owner(owner)}/bundles/"


def pack(owner: str, sha256: str) -> str:
    """The file of a bundle of a task or project, by the SHA-256 of what it holds."""
    return f"{packs_prefix(owner)}{_sha256(sha256)}"


def packs_prefix(owner: str) -> str:
    """All files of bundles of a task or project begin with it."""
    return f"{check_owner(owner)}/packs/"


def check_owner(key: str) -> str:
    """The folder of the task or project whose own object is at `key`. Raises ValueError for any other key."""
    found = _OWNER.match(key)
    if not found:
        raise ValueError(f"not the key of a task or project: {key[:200]!r}")
    return found[1]


def project_settings(tenant: str, name: str) -> str:
    """A project's credentials, set-up command and environment, encrypted; by its name, for they may be there before it."""
    return f"{_tenant_base(tenant)}/project-settings/{_sha256(hashlib.sha256(name.encode()).hexdigest())}.json"


def inbox(tenant: str, item_id: str) -> str:
    """One inbox item."""
    return f"{inbox_prefix(tenant)}{_name(item_id)}.json"


def inbox_prefix(tenant: str) -> str:
    """All inbox items of a tenant begin with it."""
    return f"{_tenant_base(tenant)}/inbox/"


def inbox_open(tenant: str, item_id: str) -> str:
    """Marks that an inbox item may be open: listing those is one listing."""
    return f"{inbox_open_prefix(tenant)}{_name(item_id)}"


def inbox_open_prefix(tenant: str) -> str:
    """All markers of open inbox items begin with it."""
    return f"{_tenant_base(tenant)}/inbox-open/"


def task_inbox(tenant: str, task_id: str, item_id: str) -> str:
    """Marks that an inbox item belongs to a task."""
    return f"{task_inbox_prefix(tenant, task_id)}{_name(item_id)}"


def task_inbox_prefix(tenant: str, task_id: str) -> str:
    """All markers of a task's inbox items begin with it."""
    return task(tenant, task_id, "inbox") + "/"


def submission(tenant: str, submission_id: str) -> str:
    """Whether answers to several inbox items, given at once, are given or withdrawn."""
    return f"{_tenant_base(tenant)}/inbox-submissions/{_name(submission_id)}.json"


def owed(tenant: str, task_id: str) -> str:
    """Marks that something may be owed to a task: a turn's end, a merge, an answer."""
    return f"{owed_prefix(tenant)}{_name(task_id)}"


def owed_prefix(tenant: str) -> str:
    """All marks of tasks that something may be owed to begin with it."""
    return f"{_tenant_base(tenant)}/owed/"


def merge_queue(tenant: str, project_id: str) -> str:
    """Which tasks of a project are to be merged, in their order."""
    return project(tenant, project_id, "merges.json")


def user(tenant: str, login: str) -> str:
    """One user: identity, preferences, push subscriptions. Any login is allowed."""
    return f"{users_prefix(tenant)}{_quoted(login)}.json"


def parse_user(key: str) -> str:
    """The login in a key that `user` made."""
    return unquote(last_part(key))


def users_prefix(tenant: str) -> str:
    """All users of a tenant begin with it."""
    return f"{_tenant_base(tenant)}/users/"


def executor(tenant: str, executor_id: str) -> str:
    """One executor's record."""
    return f"{_tenant_base(tenant)}/executors/{_name(executor_id)}.json"


def model_keys(tenant: str) -> str:
    """A tenant's keys of model vendors, encrypted."""
    return f"{_tenant_base(tenant)}/model-keys.json"


def blob(tenant: str, blob_id: str) -> str:
    """The bytes of an upload or of a large tool output."""
    return f"{_tenant_base(tenant)}/blobs/{_name(blob_id)}"


def blob_record(tenant: str, blob_id: str) -> str:
    """Who uploaded an image, and when."""
    return f"{blob(tenant, blob_id)}.json"


def push_device(sha256: str) -> str:
    """A browser's push subscription by the SHA-256 of its endpoint; outside the tenants, for it belongs to whoever registered it last."""
    return f"push/devices/{_sha256(sha256)}.json"


def push_marker(tenant: str, login: str, sha256: str) -> str:
    """Marks that a device may be a user's."""
    return f"{push_markers_prefix(tenant, login)}{_sha256(sha256)}"


def parse_push_marker(key: str) -> tuple[str, str]:
    """Login and SHA-256 in a key that `push_marker` made. Raises ValueError."""
    *_, login, sha256 = key.split("/")
    return unquote(login), _sha256(sha256)


def push_markers_prefix(tenant: str, login: str | None = None) -> str:
    """All markers of devices of a tenant, or of one user, begin with it."""
    base = f"{_tenant_base(tenant)}/push/devices/"
    return base if login is None else f"{base}{_quoted(login)}/"


def push_ledger(tenant: str, item_id: str) -> str:
    """Who was told of an inbox item, on which device, and what became of it."""
    return f"{_tenant_base(tenant)}/push/items/{_name(item_id)}.json"


def vapid() -> str:
    """The deployment's key for Web Push."""
    return "push/vapid.json"


def index_snapshot(tenant: str, name: str, offset: int) -> str:
    """A snapshot of a projection of the workspace log, folded up to and without `offset`."""
    return f"{index_prefix(tenant, name)}{_number(offset, OFFSET_DIGITS)}"


def index_prefix(tenant: str, name: str) -> str:
    """All snapshots of one projection begin with it."""
    return f"{_tenant_base(tenant)}/workspace/index/{_name(name)}/"


def token(sha256: str) -> str:
    """A token's record by the SHA-256 of the token; outside the tenants, for it is what tells the tenant."""
    return f"{tokens_prefix()}{_sha256(sha256)}.json"


def tokens_prefix() -> str:
    """All tokens of all tenants begin with it."""
    return "tokens/"


def last_part(key: str) -> str:
    """The name at the end of a key, without ".json": the id for keys of entities."""
    return key.rsplit("/", 1)[-1].removesuffix(".json")


# Parts


def _base(log: LogName) -> str:
    return f"{_tenant_base(log.tenant)}/workspace" if log.session is None else _session(log.tenant, log.session)


def _session(tenant: str, session: str) -> str:
    return f"{sessions_prefix(tenant)}{_name(session)}"


def _tenant_base(tenant: str) -> str:
    return f"tenants/{_tenant(tenant)}"


def _tenant(name: str) -> str:
    if not valid_tenant(name):
        raise ValueError(f"not a tenant's name: {name[:200]!r}")
    return name


def _name(name: str) -> str:
    if not _NAME.match(name):
        raise ValueError(f"can't be part of a key: {name[:200]!r}")
    return name


def _names(path: str) -> str:
    return "/".join(_name(part) for part in path.split("/"))


def _sha256(digest: str) -> str:
    if not _SHA256.match(digest):
        raise ValueError("a SHA-256 is 64 lower-case hex characters")
    return digest


def _quoted(text: str) -> str:
    coded = quote(text, safe="@+=,").replace("~", "%7E")
    if coded.startswith("."):
        coded = "%2E" + coded[1:]
    if not coded or len(coded) > 250:
        raise ValueError(f"can't be part of a key: {text[:200]!r}")
    return coded


def _number(value: int, digits: int) -> str:
    if not 0 <= value < 10**digits:
        raise ValueError(f"{value} doesn't fit into {digits} digits")
    return f"{value:0{digits}d}"
