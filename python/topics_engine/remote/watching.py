"""A watch over a server: a session, its stream, and both again when they are lost.

Every event moves the cursor of its topic here. A stream that breaks is opened anew behind the last
event; a session that is gone (the server was started anew) is made anew from the cursors. So each
record comes once, or is in a gap.
"""

from __future__ import annotations

import base64
import contextlib
import json
import time
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..client.backend import Elsewhere
from ..errors import Closed, NotFound, TopicsError, Unavailable
from .caller import Caller, encoded, failure, given, with_query
from .events import Event, Line
from .page import Page, lost_of
from .wire import Answer, Stream, closed

if TYPE_CHECKING:
    from .._core import _Told, _WatchStart

# What a session may name.
MOST_NAMES = 256


class Place:
    """How far a topic is: behind what was handed out, and behind what has come."""

    __slots__ = ("id", "seen", "taken")

    def __init__(self, topic_id: int | None, seq: int) -> None:
        self.id = topic_id
        self.seen = self.taken = seq


class Source(Elsewhere):
    """An open subscription. One waits in it; `close` from anywhere."""

    def __init__(
        self,
        caller: Caller,
        topics: Sequence[_WatchStart],
        patterns: Sequence[_WatchStart],
        lenient: bool,
        fields: dict[str, Any],
    ) -> None:
        self._caller = caller
        self._topics = list(topics)
        self._patterns = [name for name, *_ in patterns]
        self._lenient = lenient
        self._fields = fields
        self._places: dict[str, Place] = {}
        self._told: deque[tuple[str, _Told]] = deque()
        self._line = Line(self._open, caller.options.heartbeat)
        self._session: str | None = None
        self._last_id: str | None = None
        # Whether the session was asked for a stream.
        self._asked = False
        self._begun = self._closed = False

    def begin(self) -> None:
        """Makes the session, unless that was done: the watch begins where the topics are now."""
        if not self._begun:
            self._create({name: _start(a, t, i) for name, a, t, i in self._topics}, self._lenient)
            self._begun = True

    def next(self, timeout: float | None = None) -> _Told | None:
        """The next event, or `None` when the timeout passed."""
        until = None if timeout is None else time.monotonic() + timeout
        self.begin()
        while not self._told:
            if self._closed:
                raise closed()
            if not self._line.wait(until) and not self._told:
                return None
            while self._line.events:
                self._understand(self._line.events.popleft())
        topic, told = self._told.popleft()
        if told[0] == "topic-deleted":
            self._places.pop(topic, None)
        else:
            self._places[topic].taken = told[5] or 0
        return told

    def cursors(self) -> list[tuple[str, int, int]]:
        """`(topic, topic_id, cursor)` after what `next` returned."""
        if not self._begun:
            return [(name, 0, after) for name, after, *_ in self._topics if after is not None]
        return [(name, place.id or 0, place.taken) for name, place in self._places.items()]

    def _create(self, topics: dict[str, Any], lenient: bool) -> set[str]:
        """A session; the topics that are there."""
        if self._closed:
            raise closed()
        beat = round(self._caller.options.heartbeat * 1000)
        body = {"topics": topics, "heartbeat_ms": min(60_000, max(1000, beat)), **self._fields}
        if self._patterns:
            body["patterns"] = self._patterns
        path = with_query("/v0/watch", lenient=lenient or None)
        made = self._caller.json("POST", path, body)
        self._session, self._last_id, self._asked = made["stream_url"], None, False
        for name, at in made["topics"].items():
            known = self._places.get(name)
            if known is None:
                self._places[name] = Place(at.get("topic_id"), at["from_seq"])
            elif known.id is None:
                known.id = at.get("topic_id")
        return set(made["topics"])

    def _resume(self) -> None:
        """A new session, from where the one before was."""
        topics: dict[str, Any] = {
            name: given(from_seq=place.seen, topic_id=place.id)
            for name, place in self._places.items()
        }
        for name, *how in self._topics:
            topics.setdefault(name, _start(*how))
        for pattern in self._patterns:
            # What was created meanwhile is read from its start.
            path = with_query("/v0/topics", prefix=pattern[:-1], page_size=1000, touch=False)
            for found in self._caller.json("GET", path)["topics"]:
                topics.setdefault(found["topic"], {"from_seq": 0})
        if len(topics) + len(self._patterns) > MOST_NAMES:
            raise Unavailable(
                f"a watch of {len(topics)} topics is not resumed: a session names {MOST_NAMES}",
                "session_gone",
            )
        there = self._create(topics, lenient=True)
        for gone in self._places.keys() - there:
            # Deleted meanwhile; one that is made anew joins.
            self._places[gone] = Place(None, 0)
            self._told.append((gone, ("topic-deleted", gone, 0, None, None, None)))

    def _open(self, idle: float) -> Stream:
        until = time.monotonic() + self._caller.options.deadline
        while True:
            if self._closed:
                raise closed()
            if self._session is None or (self._asked and self._last_id is None):
                # What a stream was given that this client saw nothing of is behind the session's
                # place, and there is no event to lead it back to.
                self._end_session()
                self._resume()
            headers = {} if self._last_id is None else {"Last-Event-ID": self._last_id}
            assert self._session is not None
            self._asked = True
            leads_back = self._last_id is not None
            try:
                return self._caller.stream(self._session, headers, idle, until, leads_back)
            except NotFound:
                self._session = None
            except Unavailable:
                if leads_back or time.monotonic() >= until:
                    raise

    def _understand(self, event: Event) -> None:
        if event.kind == "error":
            self._failed(json.loads(event.data))
            return
        if event.id is not None:
            self._last_id = event.id
        told = self._told_by(event)
        if told is None:
            return
        topic, seq = told[1], told[5]
        place = self._places.get(topic)
        if told[0] == "topic-deleted":
            if place is not None:
                self._places[topic] = Place(None, 0)
        else:
            if place is None:
                place = self._places[topic] = Place(None, 0)
            place.seen = seq or 0
            place.id = _topic_id(event.id, topic) or place.id
        self._told.append((topic, told))

    def _told_by(self, event: Event) -> _Told | None:
        if event.kind == "record":
            page = Page(event.data)
            at: int = page.to_seq
            return "records", page.topic, 0, page, None, at
        fields = json.loads(event.data)
        match event.kind:
            case "tombstone":
                lost = lost_of(fields)
                return "gap", fields["topic"], 0, None, lost, lost[1]
            case "caught-up":
                return "caught-up", fields["topic"], 0, None, None, fields["head_seq"]
            case "topic-deleted":
                return "topic-deleted", fields["topic"], 0, None, None, None
        return None

    def _failed(self, told: dict[str, Any]) -> None:
        """The stream ends with an error: most are lifted by another one."""
        self._line.drop()
        self._line.events.clear()
        status = told.get("code", 500)
        if status in (404, 410):
            self._session = None
        elif status in (429, 503):
            self._caller.wire.sleep(min(2.0, told.get("retry_after_ms", 100) / 1000))
        else:
            body = {"error": {"code": told.get("error"), "message": told.get("message", "")}}
            raise failure(Answer(status, {}, encoded(body) or b""))[0]

    def close(self) -> None:
        """Ends it, and the session. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._line.close()
        self._end_session()

    def _end_session(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            # A server that is not there forgets it by itself.
            with contextlib.suppress(TopicsError, Closed):
                self._caller.call("DELETE", session, repeatable=False, patient=False)


def _start(after: int | None, tail: int | None, topic_id: int | None) -> dict[str, Any]:
    if tail is not None:
        return {"tail": tail}
    return given(from_seq="earliest" if after is None else after, topic_id=topic_id)


def _topic_id(event_id: str | None, topic: str) -> int | None:
    """An event's id is the map of all cursors, with topic ids, unless there are many."""
    if event_id is None:
        return None
    with contextlib.suppress(ValueError, KeyError, TypeError, IndexError):
        packed = base64.urlsafe_b64decode(event_id + "=" * (-len(event_id) % 4))
        return int(json.loads(packed)[topic][0])
    return None
