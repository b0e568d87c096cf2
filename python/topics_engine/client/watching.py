"""A watch: an iterator that follows topics."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from ..errors import Closed, InvalidRequest
from .closing import Closing
from .reading import OnGap, loss, nodes_of, records_of
from .values import TAIL, CaughtUp, Gap, Record, Start, TopicDeleted

if TYPE_CHECKING:
    from .backend import Backend, WatchEvent, WatchStart

Event = Record | Gap | CaughtUp | TopicDeleted


class Watch(Closing, Iterator[Event]):
    """What is written to topics, as it is written; each topic in the order of its seqs.

    Iterating waits, and hears Ctrl-C while it does. Not thread-safe, but for `close`, which ends
    the iteration from any thread. Use it in a `with` block, or `close` it.
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
            raise InvalidRequest(f"gaps is 'yield', 'raise' or 'skip', not {gaps!r}")
        if isinstance(topics, str):
            topics = [topics]
        if not isinstance(topics, Mapping):
            topics = dict.fromkeys(topics, TAIL)
        starts = [_start(name, at) for name, at in topics.items()]
        self.gaps: list[Gap] = []
        """The gaps met so far."""
        self._names = tuple(topics)
        self._events = events
        self._on_gap: OnGap = gaps
        self._items: deque[Event] = deque()
        # The topic that the items are of, and its cursor after and before the last of them.
        self._topic, self._after, self._at = "", 0, 0
        # A gap was raised and nothing taken since: the cursor stays in front of what was lost.
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
        """What to store: `db.watch(cursor)` goes on behind the items taken so far."""
        at = dict(self._cursors)
        if not self._closed:
            # Records that were passed over move cursors too.
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
        """The next item; `None` when `wait` seconds have passed, or the watch is closed."""
        self._await_items(wait)
        return self._take() if self._items and not self._closed else None

    def batches(self, wait: float | None = None) -> Iterator[list[Event]]:
        """The same, what came together in a list; with `wait`, an empty list when nothing came in
        so many seconds.
        """
        while not self._closed:
            self._await_items(wait)
            if not self._closed:
                yield self._take_all()

    def _await_items(self, wait: float | None) -> None:
        """Waits until there is an item, or `wait` seconds have passed; events may come to none."""
        deadline = None if wait is None else time.monotonic() + wait
        while not self._items and not self._closed:
            if not self._fetch(left(deadline)) and left(deadline) == 0.0:
                return

    def _take_all(self) -> list[Event]:
        return [self._take() for _ in range(len(self._items))]

    def _fetch(self, wait: float | None) -> bool:
        """Waits for an event; false when there is none yet."""
        return self._hear(lambda: self._source.next(wait))

    def _hear(self, listen: Callable[[], WatchEvent | None]) -> bool:
        try:
            told = listen()
        except Closed:
            # Closed here: the iteration ends. The engine was closed: that is an error.
            if self._closed:
                return False
            self._closed = True
            raise
        if told is not None:
            self._lost = False
            self._items.extend(self._understood(told))
        return told is not None

    def _understood(self, told: WatchEvent) -> Iterator[Event]:
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


def left(deadline: float | None) -> float | None:
    """Seconds to a deadline."""
    return None if deadline is None else max(0.0, deadline - time.monotonic())
