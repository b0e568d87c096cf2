"""The handle of a topic."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypedDict, Unpack, cast, overload

from ..errors import AlreadyExists, Forbidden, InvalidRequest, NotFound
from . import arguments, config, show
from .arguments import EARLIEST
from .closing import Handle
from .consumer import Consumer, ConsumerInfo, Mode, infos_of
from .encoding import dump, rows
from .read import Item, OnGap, Read, ReadOptions, WithoutGaps, all_of, with_lost_range
from .values import Ack, Deleted, Durability, Record, TopicState

if TYPE_CHECKING:
    from typing_extensions import CapsuleType

    from ..options import TopicConfig
    from .arguments import Duration, Position, Since, Start, Time
    from .backend import Acked, Backend, NewRow
    from .schema import Schema
    from .transaction import Named


class WriteOptions(TypedDict):
    """The options of a write as a backend takes them."""

    node: str | None
    key: str | None
    expect_head: int | None
    sync: bool
    create: bool | None
    disable_backpressure: bool


class Topic(Handle):
    """A topic by name. Thread-safe.

    The options that the handle was made with apply when the topic is created: by the first write,
    by `create` or by `ensure`. A topic that exists keeps its own; `configure` changes them. Only if
    it has another `type` or `durability`, a write with options raises `Conflict`.
    """

    __slots__ = ("_backend", "_config", "_options", "name")
    _kind: ClassVar[str] = "topic"
    _iterated_by: ClassVar[str] = "read() ends at its head, db.watch(name) follows it"

    def __init__(self, backend: Backend, name: str, options: Mapping[str, Any]) -> None:
        self._backend = backend
        self.name = arguments.name(self._kind, name)
        self._options = options
        self._config = dump(config.fields(options)) if options else None

    if not TYPE_CHECKING:
        # What is tried first; type checkers refuse it, and these say what to do instead.

        def __iter__(self):
            raise TypeError(f"a {self._kind} is not iterable: {self._iterated_by}")

        def __contains__(self, _):
            raise TypeError(f"a {self._kind} has no `in`: read(after=seq - 1, limit=1) finds a seq")

        def __getitem__(self, _):
            raise TypeError(f"a {self._kind} has no items: read(after=…, limit=…) selects by seq")

        def __len__(self):
            raise TypeError(f"a {self._kind} has no len(): use state().count")

        def __bool__(self):
            return True

    def create(self, /, **options: Unpack[TopicConfig]) -> TopicState:
        """Creates the topic.

        Args:
            options: topic options, over those of the handle.

        Raises:
            AlreadyExists: the topic exists. `ensure` accepts it, and `configure` changes it.

        Example:
            ```python
            db.topic("payments").create(durability="fsync", cap_records=1_000_000)
            ```
        """
        return self._create({**self._options, **options})

    def ensure(self, /, **options: Unpack[TopicConfig]) -> TopicState:
        """Creates the topic if it does not exist; changes nothing if it does.

        Args:
            options: topic options, over those of the handle.

        Raises:
            Conflict: the topic exists with other values; the message has each difference.

        Example:
            ```python
            db.topic("payments").ensure(durability="fsync", ttl="7d")
            ```
        """
        return self._ensure({**self._options, **options})

    def configure(self, /, **options: Unpack[TopicConfig]) -> TopicState:
        """Changes the named options of the topic. The others, and the handle's own, stay.

        Args:
            options: the topic options to change.

        Returns:
            The state of the topic, with its whole config.

        Raises:
            NotFound: the topic does not exist.
            Conflict: the type cannot be changed.

        Example:
            ```python
            db.topic("orders").configure(ttl="30d")
            ```
        """
        self._backend.create(self.name, dump(config.fields(options)), create=False)
        self._declare_dead_letter(options)
        return self.state()

    def _create(self, options: Mapping[str, Any]) -> TopicState:
        self._backend.create(self.name, dump(config.fields(options)), create=True)
        self._declare_dead_letter(options)
        return self.state()

    def _ensure(
        self, options: Mapping[str, Any], names: Collection[str] | None = None
    ) -> TopicState:
        """Creates the topic, or compares its options; with `names`, only these."""
        while True:
            try:
                state = Topic.state(self)
            except NotFound:
                # Another client may create it meanwhile.
                with contextlib.suppress(AlreadyExists):
                    return self._create(options)
            else:
                config.compare(self.name, state.config, options, names)
                return state

    def _declare(self) -> None:
        """Creates the topic with the options of the handle if it does not exist. Like a write,
        raises `Conflict` if it has another type or class.
        """
        try:
            self._ensure(self._options, config.FIXED)
        except Forbidden as error:
            # A key that may only write leaves the check to its writes.
            if error.detail.get("missing") != ["read"]:
                raise

    def _declare_dead_letter(self, options: Mapping[str, Any]) -> None:
        declare(self._backend, options.get("dead_letter"))

    def append(
        self,
        data: Any,
        *,
        tag: str | None = None,
        origin: str | None = None,
        meta: Mapping[str, str] | None = None,
        ttl: Duration = 0,
        idempotency_key: str | None = None,
        lane: int | None = None,
        group: str | None = None,
        delay: Duration = 0,
        deliver_at: Time | None = None,
        expect_head: int | None = None,
        sync: bool = False,
        create: bool | None = None,
        block: bool = True,
    ) -> Ack:
        """Appends one record, or a list of records as one batch, all or nothing.

        Args:
            data: `bytes` are stored as they are, any other value as JSON, a tuple as one array.
                `NewRecord` gives one record options of its own, or a list as its payload.
            tag: the tag of records without one.
            origin: the node that the records come from; readers can exclude nodes.
            meta: headers of records without any.
            ttl: how long the records are kept, for example `"7d"`; 0 is for ever (default).
            idempotency_key: a repeat with the same key returns the first answer.
            lane: of jobs: 0 to 9 (default: 5); lower lanes are claimed first.
            group: of jobs: at most one job of a group is leased at a time.
            delay: of jobs: how long no claim gets them, for example `"90s"`.
            deliver_at: of jobs: no claim gets them before this time.
            expect_head: append only if this is the head of the topic.
            sync: wait until the batch is durable, whatever the class of the topic.
            create: whether to create the topic (default: the setting `auto_create`).
            block: wait for memory when the engine is overloaded (default: True).

        Returns:
            The seqs of the batch, and whether it was a repeat.

        Raises:
            Conflict: `expect_head` is not the head, or the key was used for other records.
            Full: a cap with `discard="reject"` is reached.
            Throttled: a limit of the engine is reached, or `block` is False and memory is short.
            Unavailable: the disk refuses; the outcome may be unknown, so repeat with the same
                `idempotency_key`.

        Example:
            ```python
            ack = orders.append([{"id": 1}, {"id": 2}], tag="eu:7", idempotency_key="batch-7")
            ```
        """
        given = rows(data, tag, meta, ttl, lane, group, delay, deliver_at)
        records = arguments.not_empty(given)
        options = write_options(origin, idempotency_key, expect_head, sync, create, block)
        return self._append(records, options)

    def _append(self, records: list[NewRow], options: WriteOptions) -> Ack:
        acked = self._backend.append(self.name, records, config=self._config, **options)
        return self._written(ack_of(acked))

    def _written(self, ack: Ack) -> Ack:
        if ack.created:
            self._declare_dead_letter(self._options)
        return ack

    def append_batch(
        self,
        records: list[bytes],
        *,
        tag: str | None = None,
        origin: str | None = None,
        idempotency_key: str | None = None,
        expect_head: int | None = None,
        sync: bool = False,
        create: bool | None = None,
        block: bool = True,
    ) -> Ack:
        """Appends bytes, one binary record each, without parsing them; faster than `append`.

        Reads return them as `bytes`, also where they are JSON text.

        Args:
            records: the payloads.
            tag: the tag of the records.
            origin: the node that the records come from; readers can exclude nodes.
            idempotency_key: a repeat with the same key returns the first answer.
            expect_head: append only if this is the head of the topic.
            sync: wait until the batch is durable, whatever the class of the topic.
            create: whether to create the topic (default: the setting `auto_create`).
            block: wait for memory when the engine is overloaded (default: True).

        Returns:
            The seqs of the batch, and whether it was a repeat.

        Raises:
            TopicsError: as `append`.

        Example:
            ```python
            ack = events.append_batch([b"a", b"b"])
            ```
        """
        options = write_options(origin, idempotency_key, expect_head, sync, create, block)
        payloads = raw_records(records)
        tag = arguments.optional_text("tag", tag)
        acked = self._backend.append_batch(
            self.name, payloads, tag=tag, config=self._config, **options
        )
        return self._written(ack_of(acked))

    def append_arrow(
        self,
        table: Any,
        *,
        tag: str | None = None,
        origin: str | None = None,
        idempotency_key: str | None = None,
    ) -> Ack:
        """Appends the rows of an Arrow table, or of any object with an Arrow C stream, as one
        batch.

        Args:
            table: has a column `data`: JSON text if it is utf8, bytes if it is binary. The columns
                `tag`, `node` and `meta` (a map) are optional; others are ignored.
            tag: the tag of rows without one.
            origin: the node that rows without one come from.
            idempotency_key: a repeat with the same key returns the first answer.

        Raises:
            InvalidRequest: the table has no column `data`, or one of another type.

        Example:
            ```python
            orders.append_arrow(pyarrow.table({"data": ['{"id": 1}'], "tag": ["eu:7"]}))
            ```
        """
        tag = arguments.optional_text("tag", tag)
        node = arguments.optional_text("origin", origin)
        key = arguments.idempotency_key(idempotency_key)
        acked = self._backend.append_table(self.name, self._config, table, tag, node, key)
        return self._written(ack_of(acked))

    @overload
    def read(
        self,
        after: Position = EARLIEST,
        *,
        gaps: WithoutGaps,
        **options: Unpack[ReadOptions],
    ) -> Read[Record]: ...
    @overload
    def read(
        self,
        after: Position = EARLIEST,
        *,
        gaps: OnGap = "yield",
        **options: Unpack[ReadOptions],
    ) -> Read[Item]: ...
    def read(
        self,
        after: Position = EARLIEST,
        *,
        to_seq: int | None = None,
        limit: int | None = None,
        tag: str | None = None,
        exclude_nodes: str | Sequence[str] | None = None,
        gaps: OnGap = "yield",
        since: Since | None = None,
        until: Since | None = None,
    ) -> Read[Any]:
        """Reads records after a seq, up to the head at the first fetch; then the iterator stops.

        Args:
            after: a cursor (records after this seq), `EARLIEST` (default) or `LATEST`.
            to_seq: the last seq to read (default: the head).
            limit: most records to read (default: no limit).
            tag: only records with this tag; `"eu:*"` selects tags by prefix.
            exclude_nodes: skip records that come from this node, or from these nodes.
            gaps: what to do about lost records: `"yield"` a `Gap` (default), `"raise"` `DataLoss`,
                or `"skip"` them; then all items are records. Each gap is also in `.gaps`.
            since: only records that were committed at or after this time: an aware `datetime`, ISO
                text with an offset, epoch milliseconds, or how long ago, for example `"1h"`.
            until: only records that were committed before this time.

        Raises:
            NotFound: the topic does not exist (on the first fetch).
            DataLoss: records were lost, and `gaps` is `"raise"`.

        Example:
            ```python
            for item in orders.read(after=0, tag="eu:*"): ...
            ```
        """
        return Read(
            self._backend, self.name, after, to_seq, limit, tag, exclude_nodes, gaps, since, until
        )

    def tail(self, count: int) -> list[Item]:
        """Returns the newest records, oldest first.

        Args:
            count: how many.

        Raises:
            NotFound: the topic does not exist.

        Example:
            ```python
            for item in orders.tail(20): print(item)
            ```
        """
        count = arguments.count("count", count, 0)
        page = self._backend.read(self.name, tail=count, limit=count, max_bytes=1 << 30)
        items = all_of(self.name, page)
        if len(page) < count and page.next_from_seq < page.head_seq and not page.caught_up:
            # A page of a server has at most 1000 records.
            rest = self.read(page.next_from_seq, to_seq=page.head_seq, limit=count - len(page))
            items.extend(rest)
        return items

    def lazy(self, schema: Schema | None = None) -> Any:
        """Returns the topic as a `polars.LazyFrame`, which reads what a query needs when it runs.

        Only the columns of the query are read. Conditions on `seq`, `ts` and `tag` (equality and
        `str.starts_with`) and limits select what is scanned; any other condition is applied
        to what was scanned. A gap is a row whose `gap_to` is not null.

        Args:
            schema: typed columns instead of `data`, as `read().to_arrow` takes them.

        Raises:
            NotFound: the topic does not exist.
            InvalidRequest: the schema is wrong.
            ModuleNotFoundError: polars is not installed (`pip install 'topics-engine[polars]'`).

        Example:
            ```python
            import polars

            prices = orders.lazy({"price": "double"}).filter(polars.col("tag") == "eu")
            print(prices.select(polars.col("price").mean()).collect())
            ```
        """
        from .lazy import lazy

        return lazy(self._backend, self.name, schema)

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> CapsuleType:
        """A new Arrow stream of all records up to the head of now: polars, pyarrow, DuckDB and
        others read it, any number of times.
        """
        return self.read().__arrow_c_stream__(requested_schema)

    def __arrow_c_schema__(self) -> CapsuleType:
        """The schema of the stream."""
        return self.read().__arrow_c_schema__()

    def infer_schema(self, n: int = 10_000) -> dict[str, Any]:
        """Proposes a schema for typed columns, from the newest records.

        Members of objects become columns by their paths; arrays become strings of JSON. All of the
        examined values fit. A member with the name of a column of the topic becomes `name_field`.

        Args:
            n: how many records are examined.

        Raises:
            NotFound: the topic does not exist.

        Example:
            ```python
            schema = orders.infer_schema()
            table = orders.read().to_arrow(schema)
            ```
        """
        from .inference import infer, parsed

        found = self.tail(arguments.count("n", n))
        return infer(parsed(item.data) for item in found if isinstance(item, Record))

    def wait(self, after: int, timeout: Duration | None = None) -> bool:
        """Waits until the topic has a record after a seq.

        Args:
            after: the seq.
            timeout: how long to wait at most (default: no limit).

        Returns:
            False if the time has passed without one.
        """
        seq = arguments.seq("after", after)
        return self._backend.wait(self.name, seq, arguments.optional_seconds("timeout", timeout))

    def consumer(
        self,
        name: str,
        mode: Mode | None = None,
        *,
        start: Start | Literal["earliest", "latest"] = EARLIEST,
        auto_commit: bool = False,
    ) -> Consumer:
        """Returns a reader whose cursor the engine stores; creates it if it does not exist.

        Args:
            name: the name of the consumer.
            mode: `"at_least_once"` (default of a new one) stores the cursor by `commit`;
                `"at_most_once"` stores it durably before records are returned.
            start: where a new consumer begins: `EARLIEST` (default) or `LATEST`.
            auto_commit: commit a batch when the next one is read (default: False).

        Raises:
            NotFound: the topic does not exist.
            Conflict: the consumer exists with another mode.

        Example:
            ```python
            billing = orders.consumer("billing")
            batch = billing.read(wait=5)
            batch.commit()
            ```
        """
        arguments.name("consumer", name)
        if mode is not None:
            arguments.choice("mode", mode, ("at_least_once", "at_most_once"))
        begin = "start" if arguments.end("start", start) is EARLIEST else "end"
        flag = arguments.flag("auto_commit", auto_commit)
        native = self._backend.consumer(self.name, name, mode, begin, flag)
        return Consumer(self._backend, native, self.name, name)

    def consumers(self) -> list[ConsumerInfo]:
        """The consumers of the topic, in name order."""
        return infos_of(self._backend.consumers(self.name))

    def drop_consumer(self, name: str) -> bool:
        """Deletes a consumer and its cursor; returns False if it does not exist.

        Args:
            name: the name of the consumer.
        """
        return self._backend.delete_consumer(self.name, arguments.name("consumer", name))

    def seek(self, ts: Time) -> int:
        """Returns the cursor just before the first record at or after a time.

        Args:
            ts: an aware `datetime`, ISO text with an offset, or epoch milliseconds.

        Raises:
            NotFound: the topic does not exist.

        Example:
            ```python
            cursor = orders.seek("2026-01-31T12:00:00+00:00")
            for item in orders.read(after=cursor): print(item)
            ```
        """
        return self._backend.seek(self.name, arguments.epoch_ms("ts", ts))

    def delete(
        self,
        *,
        before: int | None = None,
        tag: str | None = None,
        seqs: Iterable[int] | None = None,
    ) -> Deleted:
        """Deletes records.

        Args:
            before: those with a smaller seq.
            tag: those with this tag; `"eu:*"` selects tags by prefix. With both arguments, those
                that meet both.
            seqs: these records, at most 1000; without the other arguments.

        Returns:
            How many records were deleted, and the topic afterwards.

        Raises:
            NotFound: the topic does not exist.

        Example:
            ```python
            orders.delete(before=1000, tag="eu:*")
            orders.delete(seqs=[7, 9])
            ```
        """
        if seqs is not None:
            if before is not None or tag is not None:
                raise InvalidRequest("delete takes seqs, or before and tag, not both")
            listed = arguments.seqs("seqs", seqs)
            fields = self._backend.delete(self.name, seqs=listed)
            return Deleted(**{name: fields[name] for name in Deleted.__match_args__})
        if before is None and tag is None:
            raise InvalidRequest(
                "delete needs before, tag or seqs: to delete all records, use drop"
            )
        seq = arguments.optional_seq("before", before)
        fields = self._backend.delete(self.name, seq, arguments.tag_filter(tag))
        return Deleted(**{name: fields[name] for name in Deleted.__match_args__})

    def trim(self, count: int) -> Deleted:
        """Deletes all but the newest records. What is written meanwhile stays, too.

        Args:
            count: how many records stay.

        Returns:
            How many records were deleted, and the topic afterwards.

        Raises:
            NotFound: the topic does not exist.

        Example:
            ```python
            orders.trim(10_000)
            ```
        """
        most = arguments.MAX_INT
        fields = self._backend.trim(self.name, arguments.count("count", count, 0, most))
        return Deleted(**{name: fields[name] for name in Deleted.__match_args__})

    def state(self) -> TopicState:
        """Returns the state and the config of the topic.

        Raises:
            NotFound: the topic does not exist.
        """
        return TopicState.from_json(self._backend.state(self.name))

    def sync(self) -> None:
        """Waits until everything that was acked before is durable.

        Raises:
            DataLoss: acked records of class `memory` were lost before they were written; reported
                once, one topic at a time.
        """
        with with_lost_range():
            self._backend.sync(self.name)

    def drop(self, *, if_empty: bool = False) -> bool:
        """Deletes the topic with its consumers and queue state.

        Args:
            if_empty: raise `Conflict` if the topic has records (default: False).

        Returns:
            False if the topic does not exist.
        """
        return self._backend.delete_topic(self.name, arguments.flag("if_empty", if_empty))

    def __repr__(self) -> str:
        return show.topic_text(self)

    def _repr_html_(self) -> str:
        return show.topic_html(self)


def declare(backend: Backend, topic: str | Named | None) -> None:
    """Creates the topic of a handle with the options of the handle, if it does not exist. A name,
    or a handle without options, is left to the engine.
    """
    handle = getattr(topic, "_sync", topic)
    if isinstance(handle, Topic) and handle._options:
        Topic(backend, handle.name, handle._options)._declare()


def write_options(
    origin: str | None = None,
    idempotency_key: str | None = None,
    expect_head: int | None = None,
    sync: bool = False,
    create: bool | None = None,
    block: bool = True,
) -> WriteOptions:
    """The options of a write, checked, as a backend takes them."""
    return {
        "node": arguments.optional_text("origin", origin),
        "key": arguments.idempotency_key(idempotency_key),
        "expect_head": arguments.optional_seq("expect_head", expect_head),
        "sync": arguments.flag("sync", sync),
        "create": None if create is None else arguments.flag("create", create),
        "disable_backpressure": arguments.flag("block", block),
    }


def raw_records(records: object) -> list[bytes]:
    """The payloads of `append_batch`."""
    if not isinstance(records, list | tuple):
        arguments.refuse("records", "a list of bytes", records)
    if not set(map(type, records)) <= {bytes}:
        for index, payload in enumerate(records):
            if not isinstance(payload, bytes):
                arguments.refuse(f"records[{index}]", "bytes", payload)
    return arguments.not_empty(list(records))


def ack_of(acked: Acked) -> Ack:
    """The ack of a write, from the tuple of the backend."""
    topic_id, first, last, head, count, created, deduped, durability = acked
    return Ack(topic_id, first, last, head, count, created, deduped, cast("Durability", durability))
