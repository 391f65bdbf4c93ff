"""A scripted agent that speaks the Agent Client Protocol: `python acp_agent.py [no-load]`. It plays the lines of a prompt.

| line | what it does |
|---|---|
| `/perm` | a tool call for which it asks a permission; says what was answered |
| `/slow N` | N chunks, 50 ms apart; ends when cancelled |
| `/think TEXT`, `/plan TEXT`, `/cost N` | a thought, a plan, its costs in US dollars so far |
| `/run COMMAND` | starts a command in the background, in its own session |
| `/files` | asks for a file of ours, and says what was answered |
| `/recall` | every prompt that it remembers, a line each |
| `/blocks` | the types of the prompt's blocks |
| `/error TEXT` | the prompt fails with that message |
| `/garbage` | a line that is none, and an update of an unknown kind |
| anything else | says it |
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

MEMORY = Path(os.environ["HOME"]) / ".scripted" / "memory.json"
incoming: queue.Queue[dict[str, Any]] = queue.Queue()
answers: queue.Queue[dict[str, Any]] = queue.Queue()
cancelled = threading.Event()
lock = threading.Lock()


def send(**message: Any) -> None:
    with lock:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        sys.stdout.flush()


def update(**fields: Any) -> None:
    send(method="session/update", params={"sessionId": "s-1", "update": fields})


def say(text: str) -> None:
    update(sessionUpdate="agent_message_chunk", content={"type": "text", "text": text})


def ask(method: str, **params: Any) -> dict[str, Any]:
    send(id="q", method=method, params={"sessionId": "s-1", **params})
    return answers.get(timeout=20)


def read() -> None:
    for line in sys.stdin:
        message = json.loads(line)
        if "method" not in message:
            answers.put(message)
        elif message["method"] == "session/cancel":
            cancelled.set()
        else:
            incoming.put(message)
    os._exit(0)


def permission() -> None:
    call = {"toolCallId": "c1", "title": "Write a.txt", "kind": "edit"}
    update(sessionUpdate="tool_call", **call, status="pending", rawInput={})
    options = [
        {"optionId": "no", "name": "No", "kind": "reject_once"},
        {"optionId": "yes", "name": "Yes", "kind": "allow_once"},
    ]
    outcome = ask("session/request_permission", toolCall=call, options=options)["result"]["outcome"]
    update(sessionUpdate="tool_call_update", toolCallId="c1", status="in_progress", rawInput={"path": "a.txt"})
    allowed = outcome.get("optionId") == "yes"
    content = [{"type": "content", "content": {"type": "text", "text": json.dumps(outcome)}}]
    update(sessionUpdate="tool_call_update", toolCallId="c1", status="completed" if allowed else "failed", content=content)


def play(prompt: list[dict[str, Any]], memory: list[str]) -> dict[str, Any]:
    for line in prompt[-1]["text"].splitlines():
        word, _, rest = line.partition(" ")
        if word == "/perm":
            permission()
        elif word == "/slow":
            for _ in range(int(rest)):
                say("tick ")
                if cancelled.wait(0.05):
                    return {"stopReason": "cancelled"}
        elif word == "/think":
            update(sessionUpdate="agent_thought_chunk", content={"type": "text", "text": rest})
        elif word == "/plan":
            update(sessionUpdate="plan", entries=[{"content": rest, "priority": "high", "status": "completed"}])
        elif word == "/cost":
            update(sessionUpdate="usage_update", used=5, size=10, cost={"amount": float(rest), "currency": "USD"})
        elif word == "/run":
            subprocess.Popen(rest, shell=True, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            say("started")
        elif word == "/files":
            say(str(ask("fs/read_text_file", path="/etc/passwd")["error"]["code"]))
        elif word == "/recall":
            say("\n".join(memory))
        elif word == "/blocks":
            say(" ".join(block["type"] for block in prompt))
        elif word == "/garbage":
            sys.stdout.write("{half\n")
            update(sessionUpdate="from_the_future", x=1)
        else:
            say(line)
    return {"stopReason": "end_turn", "usage": {"totalTokens": 7, "inputTokens": 3, "outputTokens": 4}}


def main() -> None:
    threading.Thread(target=read, daemon=True).start()
    loads = "no-load" not in sys.argv
    memory: list[str] = []
    while True:
        message = incoming.get()
        number, method, params = message["id"], message["method"], message["params"]
        if method == "initialize":
            capabilities = {"loadSession": loads, "promptCapabilities": {"image": True}}
            send(id=number, result={"protocolVersion": 1, "agentCapabilities": capabilities})
        elif method == "session/new":
            send(id=number, result={"sessionId": "s-1"})
        elif method == "session/load":
            memory = json.loads(MEMORY.read_text())
            say("an old message, played again")
            send(id=number, result=None)
        elif method == "session/prompt":
            cancelled.clear()
            text = params["prompt"][-1]["text"]
            memory.append(text.splitlines()[0])
            MEMORY.parent.mkdir(exist_ok=True)
            MEMORY.write_text(json.dumps(memory))
            if text.startswith("/error "):
                send(id=number, error={"code": -32603, "message": text[7:]})
            else:
                send(id=number, result=play(params["prompt"], memory))
        else:
            send(id=number, error={"code": -32601, "message": method})


main()
