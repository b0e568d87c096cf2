"""Consumers: readers whose cursor the engine stores."""

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
    """What one read returned: a gap first, if there is one, then records."""

    items: list[Item]
    next_from_seq: int
    """The seq to `commit` when the whole batch is done."""
    head_seq: int
    lag: int
    lag_ms: int

    def __iter__(self) -> Iterator[Item]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)


@dataclass(frozen=True, slots=True)
class ConsumerInfo:
    """A consumer in a list."""

    topic: str
    name: str
    mode: Mode
    cursor: int
    lag: int
    """Records between the cursor and the head."""
    lag_ms: int
    """Milliseconds since the next unread record was committed; 0 when caught up."""


class Consumer:
    """A reader of a topic with a stored cursor. A new handle begins at that cursor."""

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
        """The stored cursor, as this handle knows it."""
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
        """Reads records after the handle's position, until a limit is reached.

        Args:
            max_bytes: most bytes of payloads (default: 1 MiB); at least one record is returned.
            max_records: most records (default: 2000).
            checkpoint: move the position (default: True); False peeks.
            wait: most seconds to wait for the first record (default: 0).
            match: only records with this tag; `"eu:*"` selects tags by prefix.
            fail_if_busy: raise `Conflict` instead of waiting while another reader reads from an
                `at_most_once` consumer (default: False).

        Returns:
            A batch; empty if there is nothing to read.

        Raises:
            NotFound: the consumer was deleted.
            Conflict: the consumer is busy, and `fail_if_busy` is True.

        Example:
            ```python
            batch = billing.read(wait=5)
            handle(batch)
            billing.commit(batch.next_from_seq)
            ```
        """
        page = self._native.read(max_bytes, max_records, checkpoint, wait, match, fail_if_busy)
        return batch_of(self.topic, page)

    def peek(
        self, *, max_bytes: int = 1 << 20, max_records: int = 2000, match: str | None = None
    ) -> ConsumerBatch:
        """Returns what `read` would return now, and keeps the position."""
        return self.read(
            max_bytes=max_bytes, max_records=max_records, checkpoint=False, match=match
        )

    def commit(self, seq: int) -> None:
        """Stores the cursor. A smaller seq than before changes nothing.

        Args:
            seq: everything up to and with it is done.
        """
        self._native.commit(seq)

    def seek(
        self,
        seq: int | None = None,
        *,
        ts: int | datetime | None = None,
        to: Literal["start", "end"] | None = None,
    ) -> int:
        """Sets the cursor, forwards or back. Give exactly one argument.

        Args:
            seq: the new cursor.
            ts: just before the first record at or after this time: epoch ms or an aware `datetime`.
            to: the `"start"` or the `"end"` of the topic.

        Returns:
            The new cursor.
        """
        if isinstance(ts, datetime):
            ts = int(ts.timestamp() * 1000)
        return self._native.seek(seq=seq, ts=ts, to=to)

    def drop(self) -> bool:
        """Deletes the consumer and its cursor; returns False if it does not exist."""
        return self._native.drop()

    def __repr__(self) -> str:
        return f"Consumer({self.topic!r}, {self.name!r}, {self.mode}, cursor={self.cursor})"


def batch_of(topic: str, page: Page) -> ConsumerBatch:
    """The batch of a page."""
    items = all_of(topic, page)
    return ConsumerBatch(items, page.next_from_seq, page.head_seq, page.lag, page.lag_ms)
