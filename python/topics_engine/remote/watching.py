"""A watch over a server: a session, its stream, and both again when they are lost.

Every event moves the cursor of its topic here. A stream that breaks is opened anew behind the last
event; a session that is gone (the server was started anew) is made anew from the cursors. So each
record comes once, or is in a gap.

A session names few topics, and its patterns match any number, which begin at their heads. What lies
between the cursor of such a topic and where its session begins is read before the stream is opened.
"""

from __future__ import annotations

import base64
import contextlib
import json
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from ..client.backend import Elsewhere, patience
from ..client.ending import Ending
from ..errors import Closed, NotFound, TopicsError, Unavailable
from .caller import encoded, failure, given, with_query
from .events import Event, Line
from .leasing import matcher
from .page import Page, gap_row_of
from .wire import Answer, Stream, closed

if TYPE_CHECKING:
    from .._core import _WatchEvent, _WatchStart
    from .backend import Remote

# How long a read waits for records that are there and not synced yet.
UNSYNCED_SECONDS = 1.0
# How long a close waits for the server to hear of it.
LAST_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Asked:
    """Which records are wanted, and how many at a time."""

    skip_nodes: tuple[str, ...]
    match: str | None
    limit: int
    max_bytes: int
    strong: bool

    def fields(self) -> dict[str, Any]:
        """As members of a session's body."""
        return given(
            node=list(self.skip_nodes) or None,
            match=matcher(self.match),
            limit=self.limit,
            max_batch_bytes=self.max_bytes,
            consistency="strong" if self.strong else None,
            include_tags=True,
        )


class Place:
    """How far a topic is: behind what was handed out, and behind what has come."""

    __slots__ = ("id", "id_now", "seen", "taken")

    def __init__(self, topic_id: int | None, seq: int) -> None:
        self.id = topic_id
        """Of the topic that `seen` is a seq of."""
        self.id_now = topic_id
        """Of the topic that the session watches: its events say so where they have an id."""
        self.seen = self.taken = seq


class Behind(NamedTuple):
    """A topic that is read up to where its session begins."""

    topic: str
    topic_id: int | None
    upto: int


class NotYet(Exception):
    """There is something to hand out before the stream is opened."""


class Source(Elsewhere):
    """An open subscription. One waits in it; `close` from anywhere."""

    def __init__(
        self,
        remote: Remote,
        topics: Sequence[_WatchStart],
        patterns: Sequence[_WatchStart],
        lenient: bool,
        asked: Asked,
    ) -> None:
        self._remote = remote
        self._caller = remote.caller
        self._topics = list(topics)
        self._patterns = list(patterns)
        self._lenient = lenient
        self._asked_for = asked
        self._places: dict[str, Place] = {}
        self._behind: deque[Behind] = deque()
        self._told: deque[tuple[str, _WatchEvent]] = deque()
        self._line = Line(self._open, remote.options.heartbeat)
        self._session: str | None = None
        self._last_id: str | None = None
        # Whether the session was asked for a stream.
        self._asked = False
        self._begun = self._closed = False
        self._ending = Ending()

    def begin(self) -> None:
        """Makes the session, unless that was done: the watch begins where the topics are now."""
        if not self._begun:
            with self._ending.calls():
                self._begin()

    def _begin(self) -> None:
        named = {name: _start(a, t, i) for name, a, t, i in self._topics}
        for name, at in self._create(named, self._lenient).items():
            place = self._places[name] = Place(at.get("topic_id"), at["from_seq"])
            if name not in named:
                place.seen = place.taken = self._first(name, at)
                self._fall_behind(name, place, at)
        self._begun = True

    def _first(self, topic: str, at: dict[str, Any]) -> int:
        """Where a topic that a pattern matches begins."""
        for pattern, after, tail, _ in self._patterns:
            if topic.startswith(pattern.removesuffix("*")):
                if after is not None:
                    return min(after, int(at["from_seq"]))
                return int(at["from_seq"] if tail is not None else at["earliest_seq"] - 1)
        return int(at["from_seq"])

    def next(self, timeout: float | None = None) -> _WatchEvent | None:
        """The next event, or `None` when the timeout passed."""
        until = None if timeout is None else time.monotonic() + timeout
        self._remote.check()
        self.begin()
        with self._ending.calls():
            if not self._await_told(until):
                return None
        topic, told = self._told.popleft()
        if told[0] == "topic-deleted":
            self._places.pop(topic, None)
        else:
            self._places[topic].taken = told[5] or 0
        return told

    def _await_told(self, until: float | None) -> bool:
        """Waits for an event; false when the time has come."""
        while not self._told:
            if self._closed:
                raise closed()
            if self._behind:
                self._catch_up()
                continue
            with contextlib.suppress(NotYet):
                if not self._line.wait(until):
                    return False
            while self._line.events:
                self._understand(self._line.events.popleft())
        return True

    def cursors(self) -> list[tuple[str, int, int]]:
        """`(topic, topic_id, cursor)` after what `next` returned."""
        if not self._begun:
            return [(name, 0, after) for name, after, *_ in self._topics if after is not None]
        return [(name, place.id or 0, place.taken) for name, place in self._places.items()]

    def _create(self, topics: dict[str, Any], lenient: bool) -> dict[str, dict[str, Any]]:
        """A session; the topics that are there, and where they begin."""
        if self._closed:
            raise closed()
        beat = round(self._caller.options.heartbeat * 1000)
        body = {"topics": topics, "heartbeat_ms": min(60_000, max(1000, beat))}
        body |= self._asked_for.fields()
        if self._patterns:
            body["patterns"] = [name for name, *_ in self._patterns]
        path = with_query("/v0/watch", lenient=lenient or None)
        made = self._caller.json("POST", path, body)
        self._session, self._last_id, self._asked = made["stream_url"], None, False
        self._behind.clear()
        found: dict[str, dict[str, Any]] = made["topics"]
        return found

    def _resume(self) -> None:
        """A new session, from where the one before was."""
        named = {name: _start(*how) for name, *how in self._topics}
        for name in named.keys() & self._places.keys():
            place = self._places[name]
            named[name] = given(from_seq=place.seen, topic_id=place.id)
        there = self._create(named, lenient=True)
        for gone in self._places.keys() - there.keys():
            self._gone(gone)
        for name, at in there.items():
            # What was created meanwhile is read from its start.
            place = self._places.setdefault(name, Place(None, 0))
            place.id_now = at.get("topic_id")
            if name not in named:
                self._fall_behind(name, place, at)

    def _gone(self, topic: str) -> None:
        """Deleted meanwhile; one that is made anew joins."""
        self._places[topic] = Place(None, 0)
        self._told.append((topic, ("topic-deleted", topic, 0, None, None, None)))

    def _fall_behind(self, topic: str, place: Place, at: dict[str, Any]) -> None:
        """Reads on by itself, if the session begins elsewhere than where the topic is here."""
        if place.id is None and place.seen > at["from_seq"]:
            place.seen = place.taken = 0
        made_anew = place.id is not None and place.id != at.get("topic_id")
        if made_anew or place.seen < at["from_seq"]:
            self._behind.append(Behind(topic, at.get("topic_id"), at["from_seq"]))

    def _catch_up(self) -> None:
        """A page of what lies before the session."""
        topic, topic_id, upto = self._behind[0]
        place, asked = self._places[topic], self._asked_for
        try:
            page = self._remote.read(
                topic,
                after=place.seen,
                upto=upto,
                topic_id=place.id,
                limit=asked.limit,
                max_bytes=asked.max_bytes,
                skip_nodes=asked.skip_nodes,
                match=asked.match,
                strong=asked.strong,
                wait=UNSYNCED_SECONDS if asked.strong else 0.0,
            )
        except NotFound:
            self._behind.popleft()
            self._gone(topic)
            return
        if page.topic_id != topic_id:
            # It was made anew since the session was: the stream says so.
            self._behind.popleft()
            return
        if (lost := page.tombstone) is not None:
            self._told.append((topic, ("gap", topic, 0, None, lost, lost[1])))
        place.id, place.seen = topic_id, page.next_from_seq
        if len(page):
            self._told.append((topic, ("records", topic, 0, page, None, place.seen)))
        elif lost is None:
            place.taken = place.seen
        if place.seen >= upto:
            self._behind.popleft()

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
                if self._behind or self._told:
                    raise NotYet
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
            if told[4] is not None and told[4][2] == "recreated":
                place.id_now = None
            place.id = _topic_id(event.id, topic) or place.id_now or self._id_of(topic)
            place.id_now = place.id
        self._told.append((topic, told))

    def _id_of(self, topic: str) -> int | None:
        """The id of a topic that joined a stream of many, whose events do not tell it."""
        with contextlib.suppress(TopicsError):
            return int(json.loads(self._remote.state(topic))["topic_id"])
        return None

    def _told_by(self, event: Event) -> _WatchEvent | None:
        if event.kind == "record":
            page = Page(event.data)
            at: int = page.to_seq
            return "records", page.topic, 0, page, None, at
        fields = json.loads(event.data)
        match event.kind:
            case "tombstone":
                lost = gap_row_of(fields)
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
        self._ending.end()
        self._line.close()
        before = patience.set(LAST_SECONDS)
        try:
            self._end_session()
        finally:
            patience.reset(before)

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
