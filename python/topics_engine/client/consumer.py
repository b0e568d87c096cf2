"""Consumers: readers whose cursor the engine stores."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, cast, overload

from ..errors import InvalidRequest, TopicsError
from ..frozen import Frozen, frozen
from . import arguments, show
from .arguments import EARLIEST, Start
from .closing import Handle
from .read import Item, all_of

if TYPE_CHECKING:
    from .arguments import Duration, Position, Size, Time
    from .backend import Backend, Page
    from .consumer_verbs import ConsumerVerbs

Mode = Literal["at_least_once", "at_most_once"]
MAX_RECORDS = 2000
# Seconds of one wait for records; the iterator repeats it.
LONGEST_WAIT = 3600.0


@frozen(hidden=("_of",), unhashed=("items",))
class Batch(Frozen, Sequence[Item]):
    """What one read returned: a gap first, if there is one, then records."""

    items: list[Item]
    """The gap, if there is one, and the records."""
    cursor: int
    """The seq to `commit` when the whole batch is done."""
    head_seq: int
    """The head of the topic at the read."""
    lag: int
    """Records after the cursor that are there: not deleted, evicted, lost or expired."""
    lag_seconds: float
    """Seconds since the first of these records was committed; 0 without one."""
    _of: Any
    """The consumer that it was read from."""

    @overload
    def __getitem__(self, index: int) -> Item: ...
    @overload
    def __getitem__(self, index: slice) -> list[Item]: ...
    def __getitem__(self, index: int | slice) -> Item | list[Item]:
        return self.items[index]

    def __iter__(self) -> Iterator[Item]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)

    def _repr_html_(self) -> str:
        return show.items_html(repr_of_batch(self), self.items)


class ConsumerBatch(Batch):
    """What one read returned: a sequence of a gap, if there is one, and records.

    Example:
        ```python
        batch = billing.read(wait=5)
        handle(batch)
        batch.commit()
        ```
    """

    __slots__ = ()

    def commit(self) -> None:
        """Stores the cursor behind the batch: all of it is done."""
        self._of.commit(self.cursor)


@frozen()
class ConsumerInfo(Frozen):
    """A consumer in a list."""

    topic: str
    """The topic that it reads."""
    name: str
    """The name of the consumer."""
    mode: Mode
    """When it stores its cursor."""
    cursor: int
    """The stored cursor: everything up to this seq is done."""
    lag: int
    """Records after the cursor that are there: not deleted, evicted, lost or expired."""
    lag_seconds: float
    """Seconds since the first of these records was committed; 0 without one."""


class Consumer(Handle):
    """A reader of a topic with a stored cursor. A new handle begins at that cursor.

    An `at_least_once` consumer has one reader at a time: the first read of another handle, in this
    process or elsewhere, takes it over and begins at the stored cursor. After that the reads,
    commits and seeks of the handle before raise `ConsumerFenced`, and have no effect.
    """

    __slots__ = ("_backend", "_native", "name", "topic")

    def __init__(self, backend: Backend, native: ConsumerVerbs, topic: str, name: str) -> None:
        self._backend = backend
        self._native = native
        self.topic = topic
        self.name = name

    @property
    def mode(self) -> Mode:
        """When the cursor is stored: see `Topic.consumer`."""
        return cast("Mode", self._native.mode)

    @property
    def cursor(self) -> int:
        """The stored cursor, as this handle knows it."""
        return self._native.cursor

    @property
    def _reader(self) -> Any:
        """What identifies this handle in the commits of a transaction."""
        return self._native.reader

    def read(
        self,
        *,
        max_bytes: Size = 1 << 20,
        max_records: int = 2000,
        checkpoint: bool = True,
        wait: Duration = 0,
        tag: str | None = None,
        fail_if_busy: bool = False,
    ) -> ConsumerBatch:
        """Reads records after the handle's position, until a limit is reached.

        Args:
            max_bytes: most bytes of payloads, also as text like `"8MiB"` (default: 1 MiB); at
                least one record is returned.
            max_records: most records (default: 2000).
            checkpoint: move the position (default: True); False peeks.
            wait: how long to wait for the first record at most (default: 0).
            tag: only records with this tag; `"eu:*"` selects tags by prefix.
            fail_if_busy: raise `Conflict` instead of waiting while another reader reads from an
                `at_most_once` consumer (default: False).

        Returns:
            A batch; empty if there is nothing to read.

        Raises:
            NotFound: the consumer was deleted.
            Conflict: the consumer is busy, and `fail_if_busy` is True.
            ConsumerFenced: another handle took the consumer over.

        Example:
            ```python
            batch = billing.read(wait=5)
            handle(batch)
            billing.commit(batch.cursor)
            ```
        """
        how = read_options(max_bytes, max_records, checkpoint, wait, tag, fail_if_busy)
        page = self._native.read(*how)
        return ConsumerBatch(*parts_of(self.topic, page), self)

    def batches(
        self,
        wait: Duration | None = None,
        *,
        max_bytes: Size = 1 << 20,
        max_records: int = 2000,
        tag: str | None = None,
    ) -> Iterator[ConsumerBatch]:
        """Follows the topic: iterates over batches as records come. `for batch in consumer:` does
        the same.

        Args:
            wait: yield an empty batch after this time without a record (default: wait on).
            max_bytes: most bytes of payloads of a batch, also as text like `"8MiB"` (default:
                1 MiB).
            max_records: most records of a batch (default: 2000).
            tag: only records with this tag; `"eu:*"` selects tags by prefix.

        Example:
            ```python
            for batch in billing.batches(wait=5):
                handle(batch)
                batch.commit()
            ```
        """
        limit = arguments.optional_seconds("wait", wait)
        how: Any = {"max_bytes": max_bytes, "max_records": max_records, "tag": tag}
        while True:
            batch = self.read(wait=LONGEST_WAIT if limit is None else limit, **how)
            if batch or limit is not None:
                yield batch

    def __iter__(self) -> Iterator[ConsumerBatch]:
        return self.batches()

    def peek(
        self, *, max_bytes: Size = 1 << 20, max_records: int = 2000, tag: str | None = None
    ) -> ConsumerBatch:
        """Returns what `read` would return now, and keeps the position. It takes nothing over.

        Args:
            max_bytes: most bytes of payloads, also as text like `"8MiB"` (default: 1 MiB); at
                least one record is returned.
            max_records: most records (default: 2000).
            tag: only records with this tag; `"eu:*"` selects tags by prefix.
        """
        return self.read(max_bytes=max_bytes, max_records=max_records, checkpoint=False, tag=tag)

    def commit(self, seq: int) -> None:
        """Stores the cursor. A smaller seq than before changes nothing.

        Args:
            seq: everything up to and with it is done.

        Raises:
            InvalidRequest: the seq is above the head.
            NotFound: the consumer was deleted.
            ConsumerFenced: another handle took the consumer over since this one was made.
        """
        self._native.commit(arguments.seq("seq", seq))

    def seek(self, position: Position | None = None, *, ts: Time | None = None) -> int:
        """Sets the cursor, forwards or back. Give exactly one argument.

        It takes nothing over: another handle that reads continues where it is, and its next commit
        may move the cursor on. End that reader first.

        Args:
            position: the new cursor, `EARLIEST` or `LATEST`.
            ts: just before the first record at or after this time: an aware `datetime`, ISO text
                with an offset, or epoch milliseconds.

        Returns:
            The new cursor.

        Raises:
            ConsumerFenced: another handle took the consumer over since this one was made.

        Example:
            ```python
            billing.seek(te.EARLIEST)
            ```
        """
        if (position is None) == (ts is None):
            raise InvalidRequest("seek needs either a position or ts")
        if ts is not None:
            return self._native.seek(ts=arguments.epoch_ms("ts", ts))
        to = arguments.position("position", position)
        if isinstance(to, Start):
            return self._native.seek(to="start" if to is EARLIEST else "end")
        return self._native.seek(seq=to)

    def drop(self) -> bool:
        """Deletes the consumer and its cursor; returns False if it does not exist."""
        return self._native.drop()

    def __repr__(self) -> str:
        try:
            state = f"{self.mode}, cursor={self.cursor}"
        except TopicsError as error:
            state = error.code
        return f"<Consumer {self.name!r} of {self.topic!r}, {state}>"


def read_options(
    max_bytes: Size,
    max_records: int,
    checkpoint: bool,
    wait: Duration,
    tag: str | None,
    fail_if_busy: bool,
) -> tuple[int, int, bool, float, str | None, bool]:
    """The arguments of a read, checked, as a backend takes them."""
    return (
        arguments.size("max_bytes", max_bytes, most=arguments.MAX_U32),
        arguments.count("max_records", max_records, 1, MAX_RECORDS),
        arguments.flag("checkpoint", checkpoint),
        arguments.seconds("wait", wait),
        arguments.tag_filter(tag),
        arguments.flag("fail_if_busy", fail_if_busy),
    )


def parts_of(topic: str, page: Page) -> tuple[list[Item], int, int, int, float]:
    """The fields of the batch of a page."""
    lag_seconds = page.lag_ms / 1000
    return all_of(topic, page), page.next_from_seq, page.head_seq, page.lag, lag_seconds


def infos_of(found: Iterable[Mapping[str, Any]]) -> list[ConsumerInfo]:
    """Consumers as a backend lists them."""
    return [
        ConsumerInfo(
            c["topic"], c["consumer"], c["mode"], c["cursor"], c["lag"], c["lag_ms"] / 1000
        )
        for c in found
    ]


def repr_of_batch(batch: Batch) -> str:
    """A batch in one line."""
    return f"<Batch of {len(batch)}, cursor={batch.cursor}, lag={batch.lag}>"
