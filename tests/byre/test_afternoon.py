"""An afternoon of twenty tasks while API, worker and Redis are restarted at random: nothing is lost, nothing is merged twice."""

from __future__ import annotations

import http.client
import os
import random
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.support.client import Reply, until
from tests.support.deployment import deployment
from tests.support.people import QUICK, People, Project, ask, git

TASKS = 20
TROUBLE_SECONDS = 100.0
AFTERNOON_SECONDS = 420.0
SEED = int(os.environ.get("SEED", "4"))


class Driver:
    """One person who gets one task done, whatever happens to the servers."""

    def __init__(self, people: People, project: Project, n: int, until_time: float) -> None:
        self.people, self.project, self.n, self.until = people, project, n, until_time
        self.title = f"Task {n}"

    def call(self, method: str, path: str, body: Any = None) -> Reply | None:
        """One request; None if nobody has answered, or can't now."""
        try:
            reply = self.people.call(method, path, body, timeout=30)
        except (OSError, http.client.HTTPException):
            time.sleep(0.5)
            return None
        if reply.status in (429, 503):
            time.sleep(0.5)
            return None
        assert reply.status < 500, (method, path, reply)
        return reply

    def run(self) -> str:
        task = self._task()
        prompt = f"/write {'shared' if self.n % 3 == 0 else self.n}.txt by {self.n}\\n"
        if self.n % 4 == 0:
            prompt += "\n" + ask("Go on?", "- ( ) yes\n- ( ) no\n", blocking=True, why_blocked="may I?")
        if self.n % 5 == 0:
            prompt = "/ratelimit 3\n" + prompt
        while time.monotonic() < self.until:
            now = self.call("GET", f"/api/tasks/{task}")
            if now is None:
                continue
            if now.json["status"] == "merged":
                break
            self._step(task, prompt)
            time.sleep(0.3)
        return task

    def _task(self) -> str:
        while True:
            listed = self.call("GET", f"/api/projects/{self.project.id}/tasks")
            if listed is None:
                continue
            known = [t for t in listed.json if t["title"] == self.title]
            if known:
                return str(known[0]["id"])
            self.call("POST", f"/api/projects/{self.project.id}/tasks", {"title": self.title})

    def _step(self, task: str, prompt: str) -> None:
        sessions, box = self.call("GET", f"/api/tasks/{task}/sessions"), self.call("GET", f"/api/inbox?task_id={task}")
        if sessions is None or box is None:
            return
        if not sessions.json:
            self.call("POST", f"/api/tasks/{task}/sessions", {"prompt": prompt})
            return
        if any(s["state"] not in ("idle", "completed") for s in sessions.json):
            return
        session = sessions.json[-1]["id"]
        for item in box.json:
            if item["kind"] == "question":
                self.call(
                    "POST",
                    "/api/inbox/responses",
                    {"responses": [{"item_id": item["id"], "type": "option", "options": ["yes"]}]},
                )
                return
        if any(item["kind"] == "report" for item in box.json):
            self.call("POST", f"/api/tasks/{task}/merge")
        else:
            self.call("POST", f"/api/sessions/{session}/messages", {"text": prompt})


def trouble(people: People, stop: threading.Event, done: list[str]) -> None:
    """Restarts one of the three at random, at random times."""
    it, chance = people.it, random.Random(SEED)
    while not stop.wait(chance.uniform(2, 6)):
        what = ("worker", "redis", "api", "worker")[len(done) % 4]
        number = chance.choice([signal.SIGKILL, signal.SIGTERM])
        if what == "redis":
            it.redis.stop(kill=number is signal.SIGKILL)
            time.sleep(chance.uniform(0, 1))
            it.redis.start()
        else:
            process = (it.apis if what == "api" else it.workers)[0]
            process.end(number)
            process.launch()
        done.append(f"{what} {number.name}")


@pytest.mark.chaos
def test_every_task_is_merged_or_says_why_not() -> None:
    with deployment(apis=1, workers=1, env=QUICK) as it:
        people = People(it)
        project = people.project()
        stop, done = threading.Event(), []
        thread = threading.Thread(target=trouble, args=(people, stop, done))
        end = time.monotonic() + AFTERNOON_SECONDS
        thread.start()
        try:
            with ThreadPoolExecutor(TASKS) as pool:
                running = [pool.submit(Driver(people, project, n, end).run) for n in range(TASKS)]
                time.sleep(TROUBLE_SECONDS)
                stop.set()
                thread.join(90)
                tasks = [each.result() for each in running]
        finally:
            stop.set()
        until("it serves", it.apis[0].serves, seconds=60)
        merged = []
        for task in tasks:
            shown = people.task(task)
            if shown["status"] == "merged":
                merged.append(shown["merge_commit"])
                continue
            assert people.inbox(task), f"{task} is {shown['status']}, {people.sessions(task)}, after {done}"
        commits = [commit for commit in merged if commit]
        log = project.log("%H|%s")
        assert sorted(line.split("|")[0] for line in log[:-1]) == sorted(commits), (log, done)
        assert git(project.truth, "rev-list", "--merges", "main") == "" and len(set(log)) == len(commits) + 1
        titles = [line.split("|")[1] for line in log[:-1]]
        assert len(titles) == len(set(titles)), "no task is merged twice"
        print(f"{len(merged)} of {TASKS} merged, {len(done)} restarts: {done}")
        assert len(merged) == TASKS, "with as much time as they had"
