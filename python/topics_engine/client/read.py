"""A read: an iterator that ends at the head of the topic at the first fetch."""

from __future__ import annotations

import contextlib
import json
from collections import deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypedDict, cast

from ..errors import Closed, DataLoss, InvalidRequest
from ..extras import extra
from . import arguments
from .arguments import Start
from .closing import CancelScope, Closing
from .encoding import matcher
from .schema import MISFITS, count_misfits, fields
from .values import Gap, Record, cursor_behind

Item = Record | Gap
OnGap = Literal["yield", "raise", "skip"]
WithoutGaps = Literal["raise", "skip"]
"""What to do about lost records so that iterating yields records only."""

if TYPE_CHECKING:
    from typing_extensions import CapsuleType, TypeVar

    from .arguments import Position, Since
    from .backend import Backend, Page
    from .schema import Schema

    T = TypeVar("T", bound=Item, default=Item, covariant=True)
else:
    from typing import TypeVar

    T = TypeVar("T")

GAPS: Final[tuple[OnGap, ...]] = ("yield", "raise", "skip")

PAGE_RECORDS = 1000
PAGE_BYTES = 1 << 20


def items_of(topic: str, page: Page) -> tuple[Gap | None, list[Record]]:
    """The gap and the records of a page."""
    gap = None
    if page.tombstone is not None:
        first, last, reason, missed, _, _ = page.tombstone
        gap = Gap(topic, first, last, reason, missed)
    return gap, records_of(topic, page)


def all_of(topic: str, page: Page) -> list[Item]:
    """The gap, if any, and the records of a page in one list."""
    gap, records = items_of(topic, page)
    return [*([] if gap is None else [gap]), *records]


def records_of(topic: str, page: Page) -> list[Record]:
    """The records of a page."""
    return [
        Record(
            topic, seq, ts, node, tag, None if meta is None else json.loads(meta), stored, binary
        )
        for seq, ts, node, tag, meta, stored, binary in page.rows()
    ]


def loss(gap: Gap) -> DataLoss:
    """The exception of `gaps="raise"`."""
    return DataLoss(
        f"records {gap.first} to {gap.last} of {gap.topic!r} are lost: {gap.reason}",
        detail={"gap_from": gap.first, "gap_to": gap.last, "reason": gap.reason},
        gap=gap,
    )


@contextlib.contextmanager
def with_lost_range() -> Iterator[None]:
    """Adds the gap to the `DataLoss` of a sync, from its facts."""
    try:
        yield
    except DataLoss as lost:
        facts = lost.detail
        first, last = int(facts["gap_from"]), int(facts["gap_to"])
        lost.gap = Gap(str(facts["topic"]), first, last, str(facts["reason"]), last - first + 1)
        raise


@contextlib.contextmanager
def _errors_of(stream: Any) -> Iterator[None]:
    """Raises the error that ended an Arrow stream, where its reader raises one of its own."""
    try:
        yield
    except Exception:
        stream.check()
        raise


def _texts(column: Any) -> list[str]:
    """The values of a column that are not null."""
    found: list[str] = column.drop_null().to_pylist() if column.null_count < len(column) else []
    return found


class ReadOptions(TypedDict, total=False):
    """The options of a read that do not change the type of its items."""

    to_seq: int | None
    limit: int | None
    tag: str | None
    exclude_nodes: str | Sequence[str] | None
    since: Since | None
    until: Since | None


class Read(Closing, Iterator[T], Generic[T]):
    """The records of a topic from a cursor to the head, or to `to_seq`. With `gaps="raise"` or
    `"skip"` all items are records.

    Not thread-safe, but `close` may be called from any thread and ends the iteration.
    """

    def __init__(
        self,
        backend: Backend,
        topic: str,
        after: Position,
        to_seq: int | None,
        limit: int | None,
        tag: str | None,
        exclude_nodes: str | Sequence[str] | None,
        gaps: OnGap,
        since: Since | None,
        until: Since | None,
    ) -> None:
        self.topic = topic
        self.gaps: list[Gap] = []
        """The gaps found so far."""
        self.misfits: dict[str, int] = {}
        """Of the last call with a schema: how many values of each column did not fit."""
        self._backend = backend
        start = arguments.position("after", after)
        self._start = start
        self._to_seq = arguments.optional_seq("to_seq", to_seq)
        self._left = arguments.optional_count("limit", limit)
        self._tag = arguments.tag_filter(tag)
        self._nodes = arguments.nodes(exclude_nodes)
        self._on_gap = arguments.choice("gaps", gaps, GAPS)
        self._since = None if since is None else arguments.since_ms("since", since)
        self._until = None if until is None else arguments.since_ms("until", until)
        if since is not None and start is not Start.EARLIEST:
            raise InvalidRequest("a read begins either after a seq or at a time: give one of them")
        if until is not None and to_seq is not None:
            raise InvalidRequest("a read ends either at a seq or at a time: give one of them")
        self._topic_id: int | None = None
        self._cursor: int | None = start if isinstance(start, int) else None
        self._page_end = 0
        self._items: deque[Item] = deque()
        self._done = self._closed = False
        self._scope = CancelScope()

    @property
    def cursor(self) -> int:
        """The cursor to store: pass it as `after=` to continue behind the items taken so far."""
        if self._cursor is None:
            self._fetch()
        return self._position()

    def _position(self) -> int:
        if self._cursor is None:
            # No record of the first page was taken yet.
            if not self._items:
                raise self._is_closed()
            first = self._items[0]
            return (first.seq if isinstance(first, Record) else first.first) - 1
        return self._cursor

    @property
    def topic_id(self) -> int:
        """The id of the topic that is read."""
        if self._topic_id is None:
            self._fetch()
        if self._topic_id is None:
            raise self._is_closed()
        return self._topic_id

    def __iter__(self) -> Read[T]:
        return self

    def __next__(self) -> T:
        while not self._items:
            if self._done:
                raise StopIteration
            self._fetch()
        if self._closed:
            raise StopIteration
        return self._take()

    def batches(self) -> Iterator[list[T]]:
        """Iterates over lists of items, one per page."""
        while True:
            while not self._items and not self._done:
                self._fetch()
            if not self._items or self._closed:
                return
            yield self._take_all()

    def _take_all(self) -> list[T]:
        return [self._take() for _ in range(len(self._items))]

    def _take(self) -> T:
        item = self._items.popleft()
        if isinstance(item, Gap) and self._on_gap == "raise":
            # The cursor stays before the gap, so that storing it hides no loss.
            raise loss(item)
        if isinstance(item, Record):
            self._cursor = item.seq
        else:
            self._cursor = cursor_behind(item.first, item.last, item.reason)
        if not self._items:
            # Records behind the last one may have been filtered out.
            self._cursor = max(self._cursor, self._page_end)
        return cast("T", item)

    def _fetch(self) -> None:
        if not self._done:
            with self._until_closed():
                self._took(self._read_page())

    @contextlib.contextmanager
    def _until_closed(self) -> Iterator[None]:
        """Suppresses `Closed` if this read was closed, but not if the engine was."""
        try:
            yield
        except Closed:
            if not self._closed:
                raise

    def _is_closed(self) -> Closed:
        return Closed("this read is closed")

    def _took(self, page: Page) -> None:
        """Keeps the items of a fetched page."""
        if self._closed:
            return
        if self._to_seq is None:
            self._to_seq = page.head_seq
        gap, records = items_of(self.topic, page)
        if gap is not None:
            self.gaps.append(gap)
            if gap.reason == "recreated":
                # `to_seq` was a seq of the deleted topic.
                self._to_seq = page.head_seq
            if self._on_gap != "skip":
                self._items.append(gap)
        self._items.extend(records)
        if self._left is not None:
            self._left -= len(records)
        moved = self._topic_id != page.topic_id or self._page_end != page.next_from_seq
        self._topic_id = page.topic_id
        self._page_end = page.next_from_seq
        if not self._items:
            self._cursor = page.next_from_seq
        at_end = page.next_from_seq >= self._to_seq or page.caught_up or not moved
        self._done = at_end or self._left == 0

    def _read_page(self) -> Page:
        """Fetches the next page; changes no state."""
        if self._closed:
            raise self._is_closed()
        with self._scope.activate():
            self._find_times()
        after = tail = None
        if self._topic_id is not None:
            after = self._page_end
        elif isinstance(self._start, int):
            after = self._start
        elif self._start is Start.LATEST:
            tail = 0
        limit = PAGE_RECORDS if self._left is None else min(self._left, PAGE_RECORDS)
        with self._scope.activate():
            return self._backend.read(
                self.topic,
                after=after,
                tail=tail,
                upto=self._to_seq,
                limit=limit,
                max_bytes=PAGE_BYTES,
                skip_nodes=self._nodes,
                match=self._tag,
                topic_id=self._topic_id,
            )

    def _find_times(self) -> None:
        """Turns the times of the first and the last record into seqs, once."""
        if self._since is not None:
            self._start = self._backend.seek(self.topic, self._since)
            self._since = None
        if self._until is not None:
            self._to_seq = self._backend.seek(self.topic, self._until)
            self._until = None

    def close(self) -> None:
        """Ends the iteration, from any thread. Idempotent."""
        self._closed = self._done = True
        self._scope.cancel()

    def __repr__(self) -> str:
        at = self._start if self._cursor is None else self._cursor
        return f"<Read of {self.topic!r} at {at}{', closed' if self._closed else ''}>"

    def to_arrow(self, schema: Schema | None = None) -> Any:
        """Returns the remaining records as a `pyarrow.Table`.

        Args:
            schema: typed columns instead of `data`: types by name, parsed from the JSON of the
                records. What does not fit is null, and counted in `misfits`.

        Raises:
            InvalidRequest: records were already taken from this read, or the schema is wrong.
            ModuleNotFoundError: pyarrow is not installed (`pip install 'topics-engine[arrow]'`).

        Example:
            ```python
            table = orders.read().to_arrow({"user": "int64", "items[0].price": "double"})
            ```
        """
        with extra("arrow", "to_arrow"):
            import pyarrow

        stream = self._scan(schema)
        reader = pyarrow.RecordBatchReader.from_stream(stream)
        batches, rows = [], 0
        with _errors_of(stream):
            for batch in reader:
                batches.append(batch)
                rows += batch.num_rows
                if self._left is not None and rows >= self._left:
                    break
        table = pyarrow.Table.from_batches(batches, reader.schema)
        if self._left is not None:
            table = table.slice(0, self._left)
        self._done = True
        if schema is not None:
            self.misfits = count_misfits(_texts(table[MISFITS]))
            if MISFITS not in fields("schema", schema):
                table = table.drop_columns([MISFITS])
        return self._without_gaps(table)

    def _without_gaps(self, table: Any) -> Any:
        """Handles gaps, which are rows of the table, as the argument `gaps` says."""
        gap_to = table["gap_to"]
        if gap_to.null_count < len(gap_to):
            lost = gap_to.is_valid()
            for row in table.filter(lost).select(["seq", "gap_to", "gap_reason"]).to_pylist():
                gap = Gap(self.topic, row["seq"], row["gap_to"], row["gap_reason"])
                self.gaps.append(gap)
                if self._on_gap == "raise":
                    self._items.append(gap)
                    self._take()
            if self._on_gap == "skip":
                table = table.filter(table["gap_to"].is_null())
        return table

    def to_polars(self, schema: Schema | None = None) -> Any:
        """Returns the remaining records as a `polars.DataFrame`.

        Args:
            schema: typed columns instead of `data`, as `to_arrow` takes them.

        Raises:
            InvalidRequest: records were already taken from this read.
            ModuleNotFoundError: polars is not installed (`pip install 'topics-engine[polars]'`).
        """
        with extra("polars", "to_polars"):
            import polars

        plain = self._left is None and self._on_gap == "yield"
        if not plain:
            return polars.from_arrow(self.to_arrow(schema))
        stream = self._scan(schema)
        with _errors_of(stream):
            frame = polars.DataFrame(stream)
        self._done = True
        if schema is not None:
            self.misfits = count_misfits(frame[MISFITS].drop_nulls())
            if MISFITS not in fields("schema", schema):
                frame = frame.drop(MISFITS)
        return frame

    def to_pandas(self, schema: Schema | None = None) -> Any:
        """Returns the remaining records as a `pandas.DataFrame`.

        Args:
            schema: typed columns instead of `data`, as `to_arrow` takes them.

        Raises:
            InvalidRequest: records were already taken from this read.
            ModuleNotFoundError: pandas is not installed (`pip install 'topics-engine[pandas]'`).
        """
        with extra("pandas", "to_pandas"):
            import pandas  # noqa: F401
            import pyarrow  # noqa: F401
        return self.to_arrow(schema).to_pandas()

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> CapsuleType:
        """A new Arrow stream of the remaining records, which ends at the head of now: polars,
        pyarrow, DuckDB and others read it, any number of times.
        """
        if self._left is None and self._on_gap == "yield":
            stream: CapsuleType = self._scan().__arrow_c_stream__(requested_schema)
        else:
            stream = self.to_arrow().__arrow_c_stream__(requested_schema)
        return stream

    def __arrow_c_schema__(self) -> CapsuleType:
        """The schema of the stream."""
        schema: CapsuleType = self._scan().__arrow_c_schema__()
        return schema

    def _scan(self, schema: Schema | None = None) -> Any:
        if self._items or self._closed:
            raise InvalidRequest(
                "this read has already returned records: call to_arrow() on a new one"
            )
        with self._scope.activate():
            self._find_times()
        after = self._start if self._cursor is None else self._cursor
        to_seq = self._to_seq
        if after is Start.LATEST:
            after = self.cursor
            to_seq = after
        asked = {
            "from_seq": "earliest" if isinstance(after, Start) else after,
            "to_seq": to_seq,
            "node": self._nodes or None,
            "match": matcher(self._tag),
            "topic_id": self._topic_id,
            "fields": None if schema is None else {**fields("schema", schema), MISFITS: "string"},
        }
        request = {name: value for name, value in asked.items() if value is not None}
        with self._scope.activate():
            return self._backend.scan(self.topic, request, self._left)
