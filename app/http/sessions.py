"""Brain sessions over HTTP: one method per operation, named by its operationId. No rule lives here."""

from __future__ import annotations

from app.http import sse
from app.http.deps import Document, SessionService
from app.http.requests import Call
from app.http.sse import Followers


class Sessions:
    """Handlers of `/sessions`."""

    def __init__(self, sessions: SessionService, followers: Followers) -> None:
        self._sessions = sessions
        self._followers = followers

    def create(self, call: Call) -> Document:
        return self._sessions.create(call.caller, call.json())

    def list(self, call: Call) -> Document:
        query = call.query()
        return self._sessions.list(call.caller, query.get("after"), query["limit"])

    def get(self, call: Call) -> Document:
        return self._sessions.get(call.caller, call.id)

    def close(self, call: Call) -> Document:
        return self._sessions.close(call.caller, call.id)

    def send(self, call: Call) -> Document:
        return self._sessions.send(call.caller, call.id, call.json())

    def withdrawInput(self, call: Call) -> Document:
        return self._sessions.withdraw(call.caller, call.id, call.params["event_id"])

    def flush(self, call: Call) -> Document:
        return self._sessions.flush(call.caller, call.id)

    def sync(self, call: Call) -> Document:
        return self._sessions.sync(call.caller, call.id)

    def resume(self, call: Call) -> Document:
        return self._sessions.resume(call.caller, call.id)

    def restore(self, call: Call) -> Document:
        return self._sessions.restore(call.caller, call.id, call.json()["checkpoint"])

    def events(self, call: Call) -> Document | None:
        """A page as JSON, or (Accept: text/event-stream) history and then whatever comes, with no gap between."""
        query = call.query()
        after, last = query.get("after"), call.header("Last-Event-ID")
        if not sse.wanted(call.req):
            return self._sessions.events(call.caller, call.id, after, query["limit"])
        if call.req.method == "HEAD":
            self._sessions.get(call.caller, call.id)
            sse.head(call.resp)
            return None
        after = after or last
        self._followers.attach(
            call.resp,
            call.req.env,
            call.credential,
            call.caller,
            lambda: self._sessions.stream(call.caller, call.id, after),
        )
        return None
