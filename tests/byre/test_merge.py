"""Merges against a real bare origin."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support.client import until
from tests.support.deployment import TENANT
from tests.support.dev import BYRE
from tests.support.people import People, ask, git


def test_a_merge_is_one_commit_by_its_caller(people: People) -> None:
    project = people.project()
    task = project.task("Add b")
    people.work(task, "/write b.txt b\n/title Add file b\n/run git add -A && git commit -qm wip")
    project.push("c.txt", "c\n")
    asked = people.merge(task)
    assert asked.status == 202 and asked.json["state"] in ("queued", "running")
    merged = people.merged(task)
    assert project.log("%H|%s|%an|%ae|%cn")[0] == f"{merged['merge_commit']}|Add file b|Test Boss|boss@example.com|Test Boss"
    assert project.log() == ["Add file b", "elsewhere", "first"]
    assert git(project.work, "rev-parse", "main") == merged["merge_commit"]
    assert (project.work / "b.txt").read_text() == "b" and (project.work / "c.txt").exists()
    assert git(project.work, "status", "--porcelain") == ""
    assert not Path(merged["worktree_path"]).exists()
    assert merged["branch"] not in git(project.work, "branch", "-a")
    assert git(project.work, "for-each-ref", "refs/byre") == ""
    note = git(project.work, "notes", "--ref=refs/notes/byre", "show", merged["merge_commit"])
    assert task in note and "Byre-Session" in note and "Byre-Snapshots" in note
    assert not people.inbox(task) and merged["closed_at"]
    kinds = [e["kind"] for e in people.events(task) if e["kind"].startswith(("merge", "task."))]
    assert kinds == ["task.created", "merge.started", "task.merged"]
    for path in ("unmerged", "changes"):
        assert people.call("GET", f"/api/tasks/{task}/{path}").status == 409
    assert people.merge(task).status == 409
    assert people.state(people.sessions(task)[0]["id"]) == "idle"


def test_merge_in_leaves_the_task_active(people: People) -> None:
    project = people.project()
    task = project.task("Just merge in")
    assert people.call("POST", f"/api/tasks/{task}/merge-in").status == 202, "it starts a session when there is none"
    (session,) = people.sessions(task)
    people.idle(session["id"])
    project.push("c.txt", "c\n")
    assert people.call("POST", f"/api/tasks/{task}/merge-in").status == 202
    people.idle(session["id"])
    assert (Path(people.task(task)["worktree_path"]) / "c.txt").exists()
    assert people.task(task)["status"] == "active" and len(people.sessions(task)) == 1
    assert [i["kind"] for i in people.inbox(task)] == ["report"]
    assert [e["payload"].get("purpose") for e in people.events(task, "turn.started")] == ["merge_in", "merge_in"]


def test_who_has_no_identity_is_refused(people: People) -> None:
    task = people.project().task()
    nobody = people.person("nobody")
    refused = people.merge(task, token=nobody)
    assert refused.status == 400 and "git_name" in refused.json["message"]
    assert people.merge("f" * 32).status == 404


def test_co_authors_are_named(people: People) -> None:
    """Three beside the caller, one without a git identity."""
    project = people.project()
    task = project.task("Together")
    one = people.person("one", "One", "one@example.com")
    two = people.person("two", "Two", "two@example.com")
    three = people.person("three")
    session = people.work(task, "/write a.txt new\n" + ask("How?"), token=one)
    people.say(session, "/say hi", token=three)
    (item,) = people.inbox(task, "question")
    people.answer({"item_id": item["id"], "type": "other", "text": "so"}, token=two)
    people.delivered(item["id"])
    people.idle(session)
    assert people.merge(task).status == 202
    people.merged(task)
    body = git(project.truth, "log", "-1", "--format=%B", "main")
    assert body.split("\n") == [
        "Together",
        "",
        "Co-authored-by: One <one@example.com>",
        "Co-authored-by: Two <two@example.com>",
    ]


def test_a_conflict_is_resolved_by_the_agent(people: People) -> None:
    project = people.project()
    task = project.task("Same file")
    people.work(task, "/write a.txt mine\\n")
    project.push("a.txt", "theirs\n")
    people.merge(task)
    people.merged(task)
    assert project.show("a.txt") == "mine" and project.log() == ["Same file", "elsewhere", "first"]


def test_markers_that_are_left_are_never_merged(people: People) -> None:
    project = people.project()
    task = project.task("Left open")
    session = people.work(task, "/onconflict leave\n/write a.txt mine\\n")
    project.push("a.txt", "theirs\n")
    people.merge(task)
    gate = people.gate(task)
    assert "a.txt" in gate["payload"]["error"] and people.task(task)["status"] == "active"
    (failed,) = people.events(task, "merge.failed")
    assert failed["payload"]["item_id"] == gate["id"]
    assert project.log() == ["elsewhere", "first"]
    # markers that were committed are no better
    people.say(session, "/run git add -A && git commit -qm markers")
    people.merge(task)
    until("the second attempt fails", lambda: len(people.events(task, "merge.failed")) == 2)
    assert "a.txt" in people.gate(task)["payload"]["error"] and project.log() == ["elsewhere", "first"]
    assert people.item(gate["id"])["state"] == "superseded", "by the second attempt"
    people.say(session, "/write a.txt settled\\n")
    people.merge(task)
    people.merged(task)
    assert project.show("a.txt") == "settled"


def test_the_default_branch_moves_while_it_is_pushed(people: People) -> None:
    """Origin gets a commit just before ours arrives: the agent merges that in as well, and nothing is forced."""
    project = people.project()
    task = project.task("Slow")
    people.work(task, "/write b.txt b")
    other = project.base / "racer"
    git(project.base, "clone", "-q", str(project.origin), str(other))
    (other / "r.txt").write_text("r\n")
    git(other, "add", "-A")
    git(other, "commit", "-q", "-m", "racer")
    bundle = git(other, "rev-parse", "HEAD")
    git(other, "push", "-q", "origin", "HEAD:refs/heads/hidden")
    hook = project.hook(
        "pre-receive", f"[ -e raced ] || {{ touch raced; unset GIT_QUARANTINE_PATH; git update-ref refs/heads/main {bundle}; }}"
    )
    people.merge(task)
    merged = people.merged(task)
    hook.unlink()
    assert project.log() == ["Slow", "racer", "first"] and project.log("%H")[0] == merged["merge_commit"]
    assert len([e for e in people.events(task, "turn.started") if e["payload"].get("purpose") == "merge_in"]) == 2


def test_what_origin_refuses_is_a_gate_item(people: People) -> None:
    project = people.project()
    task = project.task("Refused")
    people.work(task, "/write b.txt b")
    hook = project.hook("pre-receive", "echo 'this branch is protected: no direct pushes' >&2; exit 1")
    people.merge(task)
    gate = people.gate(task)
    assert "protected: no direct pushes" in gate["payload"]["error"] and "pull request" in gate["payload"]["error"]
    assert people.task(task)["status"] == "active" and project.log() == ["first"]
    assert git(project.work, "rev-parse", "main") == git(project.truth, "rev-parse", "main")
    hook.unlink()
    people.merge(task)
    people.merged(task)
    assert project.log() == ["Refused", "first"]


def test_a_dirty_checkout_is_left_as_it_is(people: People) -> None:
    project = people.project()
    task = project.task("Change a")
    people.work(task, "/write a.txt agent\\n")
    (project.work / "a.txt").write_text("the user's own\n")
    people.merge(task)
    merged = people.merged(task)
    assert project.show("a.txt") == "agent" and (project.work / "a.txt").read_text() == "the user's own\n"
    (gate,) = people.inbox(task)
    assert gate["priority"] == "gate" and "git merge --ff-only" in gate["payload"]["error"]
    git(project.work, "stash", "-q")
    git(project.work, "merge", "-q", "--ff-only", merged["merge_commit"])
    assert people.answer({"item_id": gate["id"], "type": "dismiss"}).status == 200


def test_another_branch_is_checked_out(people: People) -> None:
    project = people.project()
    task = project.task("Elsewhere")
    people.work(task, "/write b.txt b")
    git(project.work, "checkout", "-q", "-b", "topic")
    people.merge(task)
    merged = people.merged(task)
    assert git(project.work, "rev-parse", "main") == merged["merge_commit"]
    assert git(project.work, "symbolic-ref", "HEAD") == "refs/heads/topic" and not (project.work / "b.txt").exists()
    assert not people.inbox(task)


def test_local_commits_of_the_user_are_left_alone(people: People) -> None:
    project = people.project()
    task = project.task("Beside")
    people.work(task, "/write b.txt b")
    (project.work / "mine.txt").write_text("x")
    git(project.work, "add", "-A")
    git(project.work, "commit", "-q", "-m", "not pushed")
    local = git(project.work, "rev-parse", "main")
    people.merge(task)
    people.merged(task)
    assert project.log() == ["Beside", "first"] and git(project.work, "rev-parse", "main") == local
    (gate,) = people.inbox(task)
    assert "local commits" in gate["payload"]["error"]


@pytest.mark.parametrize("same", [False, True])
def test_two_tasks_merge_at_once(people: People, same: bool) -> None:
    """Both reach origin, one after the other; with `same` both change the same line."""
    project = people.project()
    tasks = [project.task(f"Task {n}") for n in range(2)]
    for n, task in enumerate(tasks):
        people.work(task, f"/write {'a.txt' if same else f'{n}.txt'} by {n}\\n")
    for task in tasks:
        assert people.merge(task).status == 202
    merged = [people.merged(task)["merge_commit"] for task in tasks]
    log = project.log("%H")
    assert len(log) == 3 and set(log[:2]) == set(merged)
    assert git(project.truth, "rev-list", "--merges", "main") == ""
    assert git(project.work, "rev-parse", "main") == log[0]


def test_nothing_to_merge(people: People) -> None:
    project = people.project()
    task = project.task("Nothing")
    people.work(task, "/say nothing to do")
    people.merge(task)
    merged = people.merged(task)
    assert merged["merge_commit"] == "" and project.log() == ["first"] and not Path(merged["worktree_path"]).exists()


def test_without_an_origin_it_is_merged_locally(people: People) -> None:
    project = people.project(origin=False)
    task = project.task("Local")
    people.work(task, "/write b.txt b")
    (project.work / "b.txt").write_text("in the way")
    people.merge(task)
    gate = people.gate(task)
    assert "checkout" in gate["payload"]["error"] and project.log() == ["first"]
    assert (project.work / "b.txt").read_text() == "in the way"
    (project.work / "b.txt").unlink()
    people.merge(task)
    merged = people.merged(task)
    assert project.log("%H")[0] == merged["merge_commit"] and (project.work / "b.txt").read_text() == "b"


def test_merges_of_a_project_wait_for_each_other_and_a_waiting_one_can_be_interrupted(people: People) -> None:
    project = people.project()
    first, second = (project.task(title) for title in ("First", "Second"))
    for task in (first, second):
        people.work(task, f"/write {task}.txt x")
    waiting = people.sessions(second)[0]["id"]
    go = project.base / "go"
    hook = project.hook("pre-receive", f"touch {project.base}/pushing; while [ ! -e {go} ]; do sleep 0.05; done")
    people.merge(first)
    until("the first is being pushed", (project.base / "pushing").exists)
    assert people.merge(second).json["state"] == "queued" and people.merge(second).status == 409
    assert people.call("POST", f"/api/sessions/{waiting}/interrupt").status == 202
    people.idle(waiting)
    (failed,) = people.events(second, "merge.failed")
    assert "interrupted" in failed["payload"]["reason"] and not [i for i in people.inbox(second) if i["priority"] == "gate"]
    refused = people.call("POST", f"/api/sessions/{people.sessions(first)[0]['id']}/interrupt")
    assert refused.status == 409, "what is being pushed can't be taken back"
    people.merge(second)
    assert people.state(waiting) == "queued"
    go.touch()
    assert people.merged(first) and people.merged(second)
    hook.unlink()
    assert project.log() == ["Second", "First", "first"]


def test_the_turn_of_a_merge_can_be_interrupted(people: People) -> None:
    project = people.project()
    task = project.task("Interrupted")
    session = people.work(task, "/write a.txt ours\\n\n/write .gitattributes a.txt merge=slow\\n")
    project.push("a.txt", "theirs\n")
    git(project.work, "config", "merge.slow.driver", f"touch {project.base}/merging; sleep 600")
    people.merge(task)
    until("the agent merges", (project.base / "merging").exists, seconds=60)
    assert people.call("POST", f"/api/sessions/{session}/interrupt").status == 202
    people.idle(session)
    git(project.work, "config", "--unset", "merge.slow.driver")
    (failed,) = people.events(task, "merge.failed")
    assert "interrupted" in failed["payload"]["reason"] and not [i for i in people.inbox(task) if i["priority"] == "gate"]
    people.say(session, "/run git merge --abort; git status --short")
    people.merge(task)
    people.merged(task)
    assert project.log() == ["Interrupted", "elsewhere", "first"]


def test_tasks_are_offered_as_pull_requests(people: People) -> None:
    """The branch is pushed and people are told; once it is on main by their own means, a merge closes the task."""
    project = people.project()
    task = project.task("Reviewed")
    session = people.work(task, "/write b.txt b")
    command = [*BYRE, "project", "pull-requests", project.base.name, "on", "--tenant", TENANT]
    subprocess.run(command, env=people.it.env, cwd=people.it.data, check=True, capture_output=True)
    people.merge(task)
    branch = people.task(task)["branch"]
    (report,) = until("people are told", lambda: [i for i in people.inbox(task, "report") if branch in i["payload"]["text"]])
    people.idle(session)
    assert report["priority"] == "review" and people.task(task)["status"] == "active" and project.log() == ["first"]
    assert git(project.truth, "show", f"{branch}:b.txt") == "b"
    git(project.truth, "update-ref", "refs/heads/main", branch)
    people.merge(task)
    assert people.merged(task)["merge_commit"] == ""


def test_the_agent_fails_in_the_merge_turn(people: People) -> None:
    project = people.project()
    task = project.task("Fails")
    session = people.work(task, "/write b.txt b\n/run git rm -q --cached a.txt; rm -rf .git; echo gone > .git")
    people.merge(task)
    gate = people.gate(task)
    (failed,) = people.events(task, "merge.failed")
    assert failed["payload"]["item_id"] == gate["id"] and len([i for i in people.inbox(task) if i["priority"] == "gate"]) == 1
    assert people.state(session) == "idle" and project.log() == ["first"]
