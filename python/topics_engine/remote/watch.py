"""A watch over a server: a watch session and its stream, which are recreated when they are lost.

Every event moves the cursor of its topic. A broken stream is reopened behind the last event; a
session that is gone, as after a restart of the server, is recreated from the cursors. So each
record is delivered once, or is in a gap.

A session names few topics; the topics of its patterns begin at their heads. The records between the
cursor of such a topic and the beginning of the session are read first (a backfill).
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

from ..client.backend import RemoteBackend, call_timeout
from ..client.closing import CancelScope
from ..client.encoding import matcher
from ..client.page import Page, gap_row_of
from ..client.request import encode_json, without_none
from ..client.values import cursor_behind
from ..errors import Closed, NotFound, TopicsError, Unavailable
from .caller import failure, target
from .events import Event, SseConnection
from .transport import Answer, Stream, closed

if TYPE_CHECKING:
    from .._core import _WatchEvent, _WatchStart
    from .backend import HttpBackend

# Seconds that a strong backfill waits for records that are not synced yet.
UNSYNCED_SECONDS = 1.0
# Seconds that `close` takes at most to delete the session.
CLOSE_TIMEOUT = 5.0


@dataclass(frozen=True, slots=True)
class WatchOptions:
    """The filter and the limits of a watch."""

    skip_nodes: tuple[str, ...]
    match: str | None
    limit: int
    max_bytes: int
    strong: bool

    def fields(self) -> dict[str, Any]:
        """The options as members of a session's body."""
        return without_none(
            node=list(self.skip_nodes) or None,
            match=matcher(self.match),
            limit=self.limit,
            max_batch_bytes=self.max_bytes,
            consistency="strong" if self.strong else None,
            include_tags=True,
        )


class TopicCursor:
    """The cursor of a topic: of the events returned, and of the events received."""

    __slots__ = ("id", "id_now", "seen", "taken")

    def __init__(self, topic_id: int | None, seq: int) -> None:
        self.id = topic_id
        """The id of the topic that `seen` belongs to."""
        self.id_now = topic_id
        """The id of the topic that the session watches, as its events say."""
        self.seen = self.taken = seq


class Backfill(NamedTuple):
    """A topic to read up to where its session begins."""

    topic: str
    topic_id: int | None
    upto: int


class HasBuffered(Exception):
    """Events are buffered that must be returned before the stream is opened."""


class RemoteWatch(RemoteBackend):
    """An open subscription. One caller waits in it; `close` from any thread."""

    def __init__(
        self,
        remote: HttpBackend,
        topics: Sequence[_WatchStart],
        patterns: Sequence[_WatchStart],
        lenient: bool,
        asked: WatchOptions,
    ) -> None:
        self._remote = remote
        self._caller = remote.caller
        self._topics = list(topics)
        self._patterns = list(patterns)
        self._lenient = lenient
        self._options = asked
        self._cursors: dict[str, TopicCursor] = {}
        self._backfills: deque[Backfill] = deque()
        self._buffered: deque[tuple[str, _WatchEvent]] = deque()
        self._connection = SseConnection(self._open, remote.options.heartbeat)
        self._session: str | None = None
        self._last_id: str | None = None
        # Whether a stream of the session was requested.
        self._asked = False
        self._begun = self._closed = False
        self._scope = CancelScope()

    def begin(self) -> None:
        """Creates the session, once: the watch begins at the current heads."""
        if not self._begun:
            with self._scope.activate():
                self._begin()

    def _begin(self) -> None:
        named = {name: _start(a, t, i) for name, a, t, i in self._topics}
        for name, at in self._create(named, self._lenient).items():
            cursor = self._cursors[name] = TopicCursor(at.get("topic_id"), at["from_seq"])
            if name not in named:
                cursor.seen = cursor.taken = self._first(name, at)
                self._add_backfill(name, cursor, at)
        self._begun = True

    def _first(self, topic: str, at: dict[str, Any]) -> int:
        """Where a topic of a pattern begins."""
        for pattern, after, tail, _ in self._patterns:
            if topic.startswith(pattern.removesuffix("*")):
                if after is not None:
                    return min(after, int(at["from_seq"]))
                return int(at["from_seq"] if tail is not None else at["earliest_seq"] - 1)
        return int(at["from_seq"])

    def next(self, timeout: float | None = None) -> _WatchEvent | None:
        """The next event; `None` if the timeout has passed."""
        until = None if timeout is None else time.monotonic() + timeout
        self._remote.check()
        self.begin()
        with self._scope.activate():
            if not self._await_buffered(until):
                return None
        topic, item = self._buffered.popleft()
        if item[0] == "topic-deleted":
            self._cursors.pop(topic, None)
        else:
            self._cursors[topic].taken = item[5] or 0
        return item

    def _await_buffered(self, until: float | None) -> bool:
        """Waits until an event is buffered; returns False at `until`."""
        while not self._buffered:
            if self._closed:
                raise closed()
            if self._backfills:
                self._backfill()
                continue
            with contextlib.suppress(HasBuffered):
                if not self._connection.wait(until):
                    return False
            while self._connection.events:
                self._handle(self._connection.events[0])
        return True

    def cursors(self) -> list[tuple[str, int, int]]:
        """`(topic, topic_id, cursor)` behind the events that `next` returned."""
        if not self._begun:
            return [(name, 0, after) for name, after, *_ in self._topics if after is not None]
        return [(name, cursor.id or 0, cursor.taken) for name, cursor in self._cursors.items()]

    def _create(self, topics: dict[str, Any], lenient: bool) -> dict[str, dict[str, Any]]:
        """Creates a session; returns its topics and where they begin."""
        if self._closed:
            raise closed()
        beat = round(self._caller.options.heartbeat * 1000)
        body = {"topics": topics, "heartbeat_ms": min(60_000, max(1000, beat))}
        body |= self._options.fields()
        if self._patterns:
            body["patterns"] = [name for name, *_ in self._patterns]
        made = self._caller.json("watch_create", "", body, query={"lenient": lenient or None})
        self._session, self._last_id, self._asked = made["wid"], None, False
        self._backfills.clear()
        found: dict[str, dict[str, Any]] = made["topics"]
        return found

    def _resume(self) -> None:
        """Creates a session that continues the lost one."""
        named = {name: _start(*how) for name, *how in self._topics}
        for name in named.keys() & self._cursors.keys():
            cursor = self._cursors[name]
            named[name] = without_none(from_seq=cursor.seen, topic_id=cursor.id)
        there = self._create(named, lenient=True)
        for gone in self._cursors.keys() - there.keys():
            self._gone(gone)
        for name, at in there.items():
            # A topic that was created meanwhile is read from its first record.
            cursor = self._cursors.setdefault(name, TopicCursor(None, 0))
            cursor.id_now = at.get("topic_id")
            if name not in named:
                self._add_backfill(name, cursor, at)

    def _gone(self, topic: str) -> None:
        """Buffers the deletion of a topic; a new topic of its name joins."""
        self._cursors[topic] = TopicCursor(None, 0)
        self._buffered.append((topic, ("topic-deleted", topic, 0, None, None, None)))

    def _add_backfill(self, topic: str, cursor: TopicCursor, at: dict[str, Any]) -> None:
        """Schedules a backfill if the session begins behind the topic's cursor."""
        if cursor.id is None and cursor.seen > at["from_seq"]:
            cursor.seen = cursor.taken = 0
        recreated = cursor.id is not None and cursor.id != at.get("topic_id")
        if recreated or cursor.seen < at["from_seq"]:
            self._backfills.append(Backfill(topic, at.get("topic_id"), at["from_seq"]))

    def _backfill(self) -> None:
        """Reads one page of the first backfill."""
        topic, topic_id, upto = self._backfills[0]
        cursor, asked = self._cursors[topic], self._options
        try:
            page = self._remote.read(
                topic,
                after=cursor.seen,
                upto=upto,
                topic_id=cursor.id,
                limit=asked.limit,
                max_bytes=asked.max_bytes,
                skip_nodes=asked.skip_nodes,
                match=asked.match,
                strong=asked.strong,
                wait=UNSYNCED_SECONDS if asked.strong else 0.0,
            )
        except NotFound:
            self._backfills.popleft()
            self._gone(topic)
            return
        if page.topic_id != topic_id:
            # The topic was recreated since the session was: the stream reports that.
            self._backfills.popleft()
            return
        if (lost := page.tombstone) is not None:
            self._buffered.append((topic, ("gap", topic, 0, None, lost, cursor_behind(*lost[:3]))))
        cursor.id, cursor.seen = topic_id, page.next_from_seq
        if len(page):
            self._buffered.append((topic, ("records", topic, 0, page, None, cursor.seen)))
        elif lost is None:
            cursor.taken = cursor.seen
        if cursor.seen >= upto:
            self._backfills.popleft()

    def _open(self, idle: float) -> Stream:
        until = time.monotonic() + self._caller.options.deadline
        while True:
            if self._closed:
                raise closed()
            if self._session is None or (self._asked and self._last_id is None):
                # A stream of this session was requested, but no event of it arrived: the session's
                # cursor may be behind lost events, and there is no event id to resume from.
                self._end_session()
                self._resume()
                if self._backfills or self._buffered:
                    raise HasBuffered
            headers = {} if self._last_id is None else {"Last-Event-ID": self._last_id}
            assert self._session is not None
            self._asked = True
            leads_back = self._last_id is not None
            try:
                path = target("watch", part=self._session)[1]
                return self._caller.stream(path, headers, idle, until, leads_back)
            except NotFound:
                self._session = None
            except Unavailable:
                if leads_back or time.monotonic() >= until:
                    raise

    def _handle(self, event: Event) -> None:
        """Takes the first event of the connection. What waits comes before it is taken: a wait that
        is cancelled has changed nothing.
        """
        if event.kind == "error":
            self._connection.events.popleft()
            self._failed(json.loads(event.data))
            return
        item = self._decode(event)
        topic_id = None if item is None else self._id_of(event, item)
        self._connection.events.popleft()
        if event.id is not None:
            self._last_id = event.id
        if item is None:
            return
        topic = item[1]
        cursor = self._cursors.get(topic)
        if item[0] == "topic-deleted":
            if cursor is not None:
                self._cursors[topic] = TopicCursor(None, 0)
        else:
            if cursor is None:
                cursor = self._cursors[topic] = TopicCursor(None, 0)
            cursor.seen = item[5] or 0
            cursor.id = cursor.id_now = topic_id
        self._buffered.append((topic, item))

    def _id_of(self, event: Event, item: _WatchEvent) -> int | None:
        """The id of an event's topic. The events of a large session do not have it: the server is
        asked for that of a topic that joined it.
        """
        kind, topic, _, _, lost, _ = item
        if kind == "topic-deleted":
            return None
        cursor = self._cursors.get(topic)
        is_anew = lost is not None and lost[2] == "recreated"
        known = None if cursor is None or is_anew else cursor.id_now
        if (found := _topic_id(event.id, topic) or known) is not None:
            return found
        with contextlib.suppress(NotFound):
            return int(json.loads(self._remote.state(topic))["topic_id"])
        return None

    def _decode(self, event: Event) -> _WatchEvent | None:
        if event.kind == "record":
            page = Page(event.data)
            at: int = page.to_seq
            return "records", page.topic, 0, page, None, at
        fields = json.loads(event.data)
        match event.kind:
            case "tombstone":
                lost = gap_row_of(fields)
                return "gap", fields["topic"], 0, None, lost, cursor_behind(*lost[:3])
            case "caught-up":
                return "caught-up", fields["topic"], 0, None, None, fields["head_seq"]
            case "topic-deleted":
                return "topic-deleted", fields["topic"], 0, None, None, None
        return None

    def _failed(self, item: dict[str, Any]) -> None:
        """Handles an error event: most errors are solved by a new stream."""
        self._connection.drop()
        self._connection.events.clear()
        status = item.get("code", 500)
        if status in (404, 410):
            self._session = None
        elif status in (429, 503):
            self._caller.pause(item)
        else:
            body = {"error": {"code": item.get("error"), "message": item.get("message", "")}}
            raise failure(Answer(status, {}, encode_json(body)))[0]

    def close(self) -> None:
        """Ends the watch and its session. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._scope.cancel()
        self._connection.close()
        before = call_timeout.set(CLOSE_TIMEOUT)
        try:
            self._end_session()
        finally:
            call_timeout.reset(before)

    def _end_session(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            # An unreachable server drops the session by itself after a while.
            with contextlib.suppress(TopicsError, Closed):
                self._caller.call("watch_end", part=session, repeatable=False, retry_refusals=False)


def _start(after: int | None, tail: int | None, topic_id: int | None) -> dict[str, Any]:
    if tail is not None:
        return {"tail": tail}
    return without_none(from_seq="earliest" if after is None else after, topic_id=topic_id)


def _topic_id(event_id: str | None, topic: str) -> int | None:
    """The topic id in an event's id, which maps topics to cursors unless there are many."""
    if event_id is None:
        return None
    with contextlib.suppress(ValueError, KeyError, TypeError, IndexError):
        packed = base64.urlsafe_b64decode(event_id + "=" * (-len(event_id) % 4))
        return int(json.loads(packed)[topic][0])
    return None
