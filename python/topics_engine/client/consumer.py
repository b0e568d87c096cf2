"""Durable consumers: readers whose position the engine keeps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Literal, cast

from .read import Item, all_of

if TYPE_CHECKING:
    from .backend import Backend, ConsumerBackend, Page

Mode = Literal["at_least_once", "at_most_once"]


@dataclass(frozen=True, slots=True)
class ConsumerBatch:
    """What one read handed out: a gap first, if there is one, then records."""

    items: list[Item]
    next_from_seq: int
    """What `commit` takes when all of it is done."""
    head_seq: int
    lag: int
    lag_ms: int

    def __iter__(self) -> Iterator[Item]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)


@dataclass(frozen=True, slots=True)
class ConsumerInfo:
    """A consumer as lists show it."""

    topic: str
    name: str
    mode: Mode
    cursor: int
    lag: int
    """Records between the cursor and the head."""
    lag_ms: int
    """Milliseconds since the next unread record was committed; 0 when caught up."""


class Consumer:
    """A reader of a topic with a stored cursor; a new handle begins where the cursor is stored."""

    __slots__ = ("_backend", "_native", "name", "topic")

    def __init__(self, backend: Backend, native: ConsumerBackend, topic: str, name: str) -> None:
        self._backend = backend
        self._native = native
        self.topic = topic
        self.name = name

    @property
    def mode(self) -> Mode:
        return cast("Mode", self._native.mode)

    @property
    def cursor(self) -> int:
        """The stored cursor."""
        return self._native.cursor

    def read(
        self,
        *,
        max_bytes: int = 1 << 20,
        max_records: int = 2000,
        checkpoint: bool = True,
        wait: float = 0,
        match: str | None = None,
        fail_if_busy: bool = False,
    ) -> ConsumerBatch:
        """Records from the cursor on until a budget is reached; at least one if there is any.

        `checkpoint=False` peeks. `wait` is how many seconds to wait for the first record.
        """
        page = self._native.read(max_bytes, max_records, checkpoint, wait, match, fail_if_busy)
        return batch_of(self.topic, page)

    def peek(
        self, *, max_bytes: int = 1 << 20, max_records: int = 2000, match: str | None = None
    ) -> ConsumerBatch:
        """What `read` would hand out now; the cursor stays."""
        return self.read(
            max_bytes=max_bytes, max_records=max_records, checkpoint=False, match=match
        )

    def commit(self, seq: int) -> None:
        """Everything up to a seq is done; a smaller one than before changes nothing."""
        self._native.commit(seq)

    def seek(
        self,
        seq: int | None = None,
        *,
        ts: int | datetime | None = None,
        to: Literal["start", "end"] | None = None,
    ) -> int:
        """Sets the cursor, forwards or back."""
        if isinstance(ts, datetime):
            ts = int(ts.timestamp() * 1000)
        return self._native.seek(seq=seq, ts=ts, to=to)

    def drop(self) -> bool:
        """Deletes the consumer and its cursor; false when there was none."""
        return self._native.drop()

    def __repr__(self) -> str:
        return f"Consumer({self.topic!r}, {self.name!r}, {self.mode}, cursor={self.cursor})"


def batch_of(topic: str, page: Page) -> ConsumerBatch:
    """What a page says."""
    items = all_of(topic, page)
    return ConsumerBatch(items, page.next_from_seq, page.head_seq, page.lag, page.lag_ms)
