"""A watch: an iterator that follows topics."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from ..errors import Closed, InvalidRequest
from .closing import Closing
from .read import OnGap, loss, nodes_of, records_of
from .values import TAIL, CaughtUp, Gap, Record, Start, TopicDeleted

if TYPE_CHECKING:
    from .backend import Backend, WatchEvent, WatchStart

Event = Record | Gap | CaughtUp | TopicDeleted


class Watch(Closing, Iterator[Event]):
    """New records of topics, each topic in the order of its seqs.

    Iterating waits, and Ctrl-C interrupts the wait. Not thread-safe, but `close` may be called from
    any thread and ends the iteration. Use it in a `with` block, or call `close`.
    """

    def __init__(
        self,
        backend: Backend,
        topics: str | Sequence[str] | Mapping[str, int | Start],
        node: str | Sequence[str] | None,
        match: str | None,
        events: bool,
        gaps: OnGap,
        strong: bool,
        lenient: bool,
        limit: int,
    ) -> None:
        if gaps not in ("yield", "raise", "skip"):
            raise InvalidRequest(f"gaps must be 'yield', 'raise' or 'skip', not {gaps!r}")
        if isinstance(topics, str):
            topics = [topics]
        if not isinstance(topics, Mapping):
            topics = dict.fromkeys(topics, TAIL)
        starts = [_start(name, at) for name, at in topics.items()]
        self.gaps: list[Gap] = []
        """The gaps found so far."""
        self._names = tuple(topics)
        self._events = events
        self._on_gap: OnGap = gaps
        self._items: deque[Event] = deque()
        # The topic of the buffered items, and its cursor behind and before the last of them.
        self._topic, self._after, self._at = "", 0, 0
        # A gap was raised and no item taken since: the cursor stays before the gap.
        self._lost = self._closed = False
        self._source = backend.watch(
            [s for s in starts if not s[0].endswith("*")],
            [s for s in starts if s[0].endswith("*")],
            lenient=lenient,
            skip_nodes=() if node is None else nodes_of(node),
            match=match,
            limit=limit,
            strong=strong,
        )
        self._cursors = {topic: at for topic, _, at in self._source.cursors()}

    @property
    def cursor(self) -> dict[str, int]:
        """The cursors to store: `db.watch(cursor)` continues behind the items taken so far."""
        at = dict(self._cursors)
        if not self._closed:
            # Records that the filter skipped move cursors, too.
            with contextlib.suppress(Closed):
                at = {topic: at for topic, _, at in self._source.cursors()}
        if self._topic in at:
            at[self._topic] = self._at if self._items or self._lost else at[self._topic]
        return at

    def __iter__(self) -> Watch:
        return self

    def __next__(self) -> Event:
        self._await_items(None)
        if self._closed:
            raise StopIteration
        return self._take()

    def next(self, wait: float | None = None) -> Event | None:
        """Returns the next item.

        Args:
            wait: most seconds to wait (default: no limit).

        Returns:
            `None` if the time has passed, or the watch is closed.
        """
        self._await_items(wait)
        return self._take() if self._items and not self._closed else None

    def batches(self, wait: float | None = None) -> Iterator[list[Event]]:
        """Iterates over lists of items that arrived together.

        Args:
            wait: yield an empty list after this many seconds without an item (default: wait on).
        """
        while not self._closed:
            self._await_items(wait)
            if not self._closed:
                yield self._take_all()

    def _await_items(self, wait: float | None) -> None:
        """Waits until an item is buffered, or `wait` seconds have passed."""
        deadline = None if wait is None else time.monotonic() + wait
        while not self._items and not self._closed:
            if not self._fetch(seconds_left(deadline)) and seconds_left(deadline) == 0.0:
                return

    def _take_all(self) -> list[Event]:
        return [self._take() for _ in range(len(self._items))]

    def _fetch(self, wait: float | None) -> bool:
        """Waits for an event; returns False if none has come."""
        return self._hear(lambda: self._source.next(wait))

    def _hear(self, listen: Callable[[], WatchEvent | None]) -> bool:
        try:
            told = listen()
        except Closed:
            # A closed watch ends the iteration. A closed engine is an error.
            if self._closed:
                return False
            self._closed = True
            raise
        if told is not None:
            self._lost = False
            self._items.extend(self._items_of(told))
        return told is not None

    def _items_of(self, told: WatchEvent) -> Iterator[Event]:
        kind, topic, _, page, gap, seq = told
        self._topic, self._after = topic, seq or 0
        self._cursors[topic] = self._after
        if page is not None:
            records = records_of(topic, page)
            self._at = records[0].seq - 1
            yield from records
        elif gap is not None:
            first, last, reason, missed, _, _ = gap
            lost = Gap(topic, first, last, reason, missed)
            self._at = first - 1
            self.gaps.append(lost)
            if self._on_gap != "skip":
                yield lost
        elif self._events:
            self._at = self._after
            yield CaughtUp(topic, self._after) if kind == "caught-up" else TopicDeleted(topic)

    def _take(self) -> Event:
        item = self._items.popleft()
        self._lost = isinstance(item, Gap) and self._on_gap == "raise"
        if isinstance(item, Gap) and self._lost:
            raise loss(item)
        if isinstance(item, Record):
            self._at = item.seq
        return item

    def close(self) -> None:
        """Ends the iteration, from any thread. Idempotent."""
        if not self._closed:
            self._cursors = self.cursor
            self._closed = True
            self._source.close()

    def __repr__(self) -> str:
        return f"<Watch of {', '.join(self._names)}{', closed' if self._closed else ''}>"


def _start(name: str, at: int | Start) -> WatchStart:
    if at is Start.TAIL:
        return (name, None, 0, None)
    return (name, at if isinstance(at, int) else None, None, None)


def seconds_left(deadline: float | None) -> float | None:
    """Seconds to a deadline of `time.monotonic`; `None` without one."""
    return None if deadline is None else max(0.0, deadline - time.monotonic())
