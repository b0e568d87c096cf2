"""A watch: an iterator that follows topics."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Generic, TypeAlias, TypedDict, cast

from ..errors import Closed
from . import arguments
from .arguments import LATEST, Start
from .closing import Closing, Handle
from .read import GAPS, OnGap, loss, records_of
from .values import CaughtUp, Gap, Record, TopicDeleted

Event = Record | Gap | CaughtUp | TopicDeleted

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    from .arguments import Duration, Position
    from .backend import Backend, WatchEvent, WatchStart
    from .transaction import Named

    T = TypeVar("T", bound=Event, default=Event, covariant=True)
    Watched: TypeAlias = str | Named | Sequence[str | Named] | Mapping[str, Position]
else:
    from typing import TypeVar

    T = TypeVar("T")


class WatchOptions(TypedDict, total=False):
    """The options of a watch that do not change the type of its items."""

    exclude_nodes: str | Sequence[str] | None
    tag: str | None
    strong: bool
    lenient: bool
    limit: int


class Watch(Closing, Iterator[T], Generic[T]):
    """New records of topics, each topic in the order of its seqs. With `gaps="raise"` or `"skip"`,
    and without `events`, all items are records.

    Iterating waits, and Ctrl-C interrupts the wait. Not thread-safe, but `close` may be called from
    any thread and ends the iteration. Use it in a `with` block, or call `close`.
    """

    def __init__(
        self,
        backend: Backend,
        topics: Watched,
        exclude_nodes: str | Sequence[str] | None,
        tag: str | None,
        events: bool,
        gaps: OnGap,
        strong: bool,
        lenient: bool,
        limit: int,
    ) -> None:
        starts = _starts(topics)
        self.gaps: list[Gap] = []
        """The gaps found so far."""
        self._names = tuple(start[0] for start in starts)
        self._events = arguments.flag("events", events)
        self._on_gap = arguments.choice("gaps", gaps, GAPS)
        self._items: deque[Event] = deque()
        # The topic of the buffered items, and its cursor behind and before the last of them.
        self._topic, self._after, self._at = "", 0, 0
        # A gap was raised and no item taken since: the cursor stays before the gap.
        self._lost = self._closed = False
        self._source = backend.watch(
            [s for s in starts if not s[0].endswith("*")],
            [s for s in starts if s[0].endswith("*")],
            lenient=arguments.flag("lenient", lenient),
            skip_nodes=arguments.nodes(exclude_nodes),
            match=arguments.tag_filter(tag),
            limit=arguments.count("limit", limit),
            strong=arguments.flag("strong", strong),
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

    def __iter__(self) -> Watch[T]:
        return self

    def __next__(self) -> T:
        self._await_items(None)
        if self._closed:
            raise StopIteration
        return self._take()

    def next(self, wait: Duration | None = None) -> T | None:
        """Returns the next item.

        Args:
            wait: how long to wait at most (default: no limit).

        Returns:
            `None` if the time has passed, or the watch is closed.
        """
        self._await_items(arguments.optional_seconds("wait", wait))
        return self._take() if self._items and not self._closed else None

    def batches(self, wait: Duration | None = None) -> Iterator[list[T]]:
        """Iterates over lists of items that arrived together.

        Args:
            wait: yield an empty list after this time without an item (default: wait on).
        """
        seconds = arguments.optional_seconds("wait", wait)
        while not self._closed:
            self._await_items(seconds)
            if not self._closed:
                yield self._take_all()

    def _await_items(self, wait: float | None) -> None:
        """Waits until an item is buffered, or `wait` seconds have passed."""
        deadline = None if wait is None else time.monotonic() + wait
        while not self._items and not self._closed:
            if not self._fetch(seconds_left(deadline)) and seconds_left(deadline) == 0.0:
                return

    def _take_all(self) -> list[T]:
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

    def _take(self) -> T:
        item = self._items.popleft()
        self._lost = isinstance(item, Gap) and self._on_gap == "raise"
        if isinstance(item, Gap) and self._lost:
            raise loss(item)
        if isinstance(item, Record):
            self._at = item.seq
        return cast("T", item)

    def close(self) -> None:
        """Ends the iteration, from any thread. Idempotent."""
        if not self._closed:
            self._cursors = self.cursor
            self._closed = True
            self._source.close()

    def __repr__(self) -> str:
        return f"<Watch of {', '.join(self._names)}{', closed' if self._closed else ''}>"


def _starts(topics: Watched) -> list[WatchStart]:
    """The topics and patterns of a watch, and where they begin."""
    if isinstance(topics, str | Handle):
        topics = [topics]
    if isinstance(topics, Mapping):
        return [_start(name, at) for name, at in topics.items()]
    found = arguments.listed("topics", "a name, a list of names, or a mapping of names", topics)
    return [_start(cast("str", name), LATEST) for name in dict.fromkeys(found)]


def _start(name: str | Named, at: Position) -> WatchStart:
    name = arguments.pattern("topics", name)
    start = arguments.position(f"topics[{name!r}]", at)
    if start is Start.LATEST:
        return (name, None, 0, None)
    return (name, start if isinstance(start, int) else None, None, None)


def seconds_left(deadline: float | None) -> float | None:
    """Seconds to a deadline of `time.monotonic`; `None` without one."""
    return None if deadline is None else max(0.0, deadline - time.monotonic())
