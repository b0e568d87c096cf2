"""The handle of a topic."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, cast

from . import show
from .backend import append_table, consumer_of
from .consumer import Consumer, ConsumerInfo, Mode
from .encoding import dump, rows
from .read import Item, OnGap, Read, all_of
from .values import EARLIEST, Ack, Deleted, Durability, Start, TopicState

if TYPE_CHECKING:
    from .backend import Acked, Backend


class Topic:
    """A topic by name. Thread-safe.

    The topic is created by `create` or by the first write, with the options that the handle was
    made with. If the topic exists and differs in one of them, that call raises `Conflict`.
    """

    __slots__ = ("_backend", "_config", "name")

    def __init__(self, backend: Backend, name: str, config: Mapping[str, Any]) -> None:
        self._backend = backend
        self.name = name
        self._config = dump(dict(config)) if config else None

    def create(self, /, **config: Any) -> TopicState:
        """Creates the topic, or updates the named options of an existing one.

        Args:
            config: topic options, over those of the handle.

        Raises:
            Conflict: an option cannot be changed.

        Example:
            ```python
            db.topic("orders").create(durability="fsync", cap_records=1_000_000)
            ```
        """
        named = {} if self._config is None else json.loads(self._config)
        self._backend.create(self.name, dump(named | config))
        return self.state()

    def append(
        self,
        data: Any,
        *,
        tag: str | None = None,
        node: str | None = None,
        meta: Mapping[str, str] | None = None,
        ttl_ms: int = 0,
        key: str | None = None,
        expect_head: int | None = None,
        sync: bool = False,
        create: bool | None = None,
        wait: bool = True,
    ) -> Ack:
        """Appends one record, or a list or tuple of records as one batch, all or nothing.

        Args:
            data: `bytes` are stored as they are, any other value as JSON. `New` gives one record
                options of its own, or a list as its payload.
            tag: the tag of records without one.
            node: the origin label of the records.
            meta: headers of records without any.
            ttl_ms: milliseconds after which records expire; 0 is never (default).
            key: idempotency key: a repeat with the same key returns the first answer.
            expect_head: append only if this is the head of the topic.
            sync: wait until the batch is durable, whatever the class of the topic.
            create: whether to create the topic (default: the setting `auto_create`).
            wait: wait for memory when the engine is overloaded (default: True).

        Returns:
            The seqs of the batch, and whether it was a repeat.

        Raises:
            Conflict: `expect_head` is not the head, or `key` was used for other records.
            Full: a cap with `discard="reject"` is reached.
            Throttled: a limit of the engine is reached, or `wait` is False and memory is short.
            Unavailable: the disk refuses; the outcome may be unknown, so repeat with the same
                `key`.

        Example:
            ```python
            ack = orders.append([{"id": 1}, {"id": 2}], tag="eu:7", key="batch-7")
            ```
        """
        acked = self._backend.append(
            self.name,
            rows(data, tag, meta, ttl_ms),
            node=node,
            key=key,
            expect_head=expect_head,
            sync=sync,
            create=create,
            config=self._config,
            disable_backpressure=wait,
        )
        return ack_of(acked)

    def append_batch(
        self,
        records: list[bytes],
        *,
        tag: str | None = None,
        node: str | None = None,
        key: str | None = None,
        expect_head: int | None = None,
        sync: bool = False,
        create: bool | None = None,
        wait: bool = True,
    ) -> Ack:
        """Appends raw bytes, one record each, without parsing them; faster than `append`.

        The arguments and errors are those of `append`.

        Args:
            records: the payloads.

        Example:
            ```python
            ack = events.append_batch([b"a", b"b"])
            ```
        """
        acked = self._backend.append_batch(
            self.name,
            records,
            tag=tag,
            node=node,
            key=key,
            expect_head=expect_head,
            sync=sync,
            create=create,
            config=self._config,
            disable_backpressure=wait,
        )
        return ack_of(acked)

    def append_arrow(
        self,
        table: Any,
        *,
        tag: str | None = None,
        node: str | None = None,
        key: str | None = None,
    ) -> Ack:
        """Appends the rows of an Arrow table, or of any object with an Arrow C stream, as one
        batch.

        Args:
            table: has a column `data`: JSON text if it is utf8, bytes if it is binary. The columns
                `tag`, `node` and `meta` (a map) are optional; others are ignored.
            tag: the tag of rows without one.
            node: the origin label of rows without one.
            key: idempotency key: a repeat with the same key returns the first answer.

        Raises:
            InvalidRequest: the table has no column `data`, or one of another type.

        Example:
            ```python
            orders.append_arrow(pyarrow.table({"data": ['{"id": 1}'], "tag": ["eu:7"]}))
            ```
        """
        return ack_of(append_table(self._backend, self.name, self._config, table, tag, node, key))

    def read(
        self,
        after: int | Start = EARLIEST,
        *,
        upto: int | None = None,
        limit: int | None = None,
        match: str | None = None,
        node: str | Sequence[str] | None = None,
        gaps: OnGap = "yield",
    ) -> Read:
        """Reads records after a seq, up to the head at the first fetch; then the iterator stops.

        Args:
            after: a cursor (records after this seq), `EARLIEST` (default) or `TAIL`.
            upto: the last seq to read (default: the head).
            limit: most records to read (default: no limit).
            match: only records with this tag; `"eu:*"` selects tags by prefix.
            node: skip records of this node, or of these nodes.
            gaps: what to do about lost records: `"yield"` a `Gap` (default), `"raise"` `DataLoss`,
                or `"skip"` them. Each is also in `.gaps`.

        Raises:
            NotFound: the topic does not exist (on the first fetch).
            DataLoss: records were lost, and `gaps` is `"raise"`.

        Example:
            ```python
            for item in orders.read(after=0, match="eu:*"): ...
            ```
        """
        return Read(self._backend, self.name, after, upto, limit, match, node, gaps)

    def tail(self, count: int) -> list[Item]:
        """Returns the newest records, oldest first.

        Args:
            count: how many.
        """
        page = self._backend.read(self.name, tail=count, limit=count, max_bytes=1 << 30)
        items = all_of(self.name, page)
        if page.next_from_seq < page.head_seq and not page.caught_up:
            # A page of a server has at most 1000 records.
            rest = self.read(page.next_from_seq, upto=page.head_seq, limit=count - len(page))
            items.extend(rest)
        return items

    def wait(self, after: int, wait: float | None = None) -> bool:
        """Waits until the topic has a record after a seq.

        Args:
            after: the seq.
            wait: most seconds to wait (default: no limit).

        Returns:
            False if the time has passed without one.
        """
        return self._backend.wait(self.name, after, wait)

    def consumer(
        self,
        name: str,
        mode: Mode | None = None,
        *,
        start: Literal["start", "end"] = "start",
        auto_commit: bool = False,
    ) -> Consumer:
        """Returns a reader whose cursor the engine stores; creates it if it does not exist.

        Args:
            name: the name of the consumer.
            mode: `"at_least_once"` (default of a new one) stores the cursor by `commit`;
                `"at_most_once"` stores it durably before records are returned.
            start: where a new consumer begins: `"start"` (default) or `"end"` of the topic.
            auto_commit: commit a batch when the next one is read (default: False).

        Raises:
            NotFound: the topic does not exist.
            Conflict: the consumer exists with another mode.

        Example:
            ```python
            billing = orders.consumer("billing")
            batch = billing.read(wait=5)
            billing.commit(batch.next_from_seq)
            ```
        """
        native = consumer_of(self._backend, self.name, name, mode, start, auto_commit)
        return Consumer(self._backend, native, self.name, name)

    def consumers(self) -> list[ConsumerInfo]:
        """The consumers of the topic, in name order."""
        found = self._backend.consumers(self.name)
        return [
            ConsumerInfo(self.name, name, cast("Mode", mode), *rest) for name, mode, *rest in found
        ]

    def drop_consumer(self, name: str) -> bool:
        """Deletes a consumer and its cursor; returns False if it does not exist."""
        return self._backend.delete_consumer(self.name, name)

    def seek(self, ts: int | datetime) -> int:
        """Returns the cursor just before the first record at or after a time.

        Args:
            ts: epoch milliseconds, or an aware `datetime`.
        """
        if isinstance(ts, datetime):
            ts = int(ts.timestamp() * 1000)
        return self._backend.seek(self.name, ts)

    def delete(self, *, before: int | None = None, match: str | None = None) -> Deleted:
        """Deletes records.

        Args:
            before: those with a smaller seq.
            match: those with this tag; `"eu:*"` selects tags by prefix. With both arguments, those
                that meet both.

        Example:
            ```python
            orders.delete(before=1000, match="eu:*")
            ```
        """
        fields = json.loads(self._backend.delete(self.name, before, match))
        return Deleted(**{name: fields[name] for name in Deleted.__slots__})

    def state(self) -> TopicState:
        """Returns the state and the config of the topic.

        Raises:
            NotFound: the topic does not exist.
        """
        return TopicState.from_json(self._backend.state(self.name))

    def sync(self) -> None:
        """Waits until everything that was acked before is durable."""
        self._backend.sync(self.name)

    def drop(self, *, if_empty: bool = False) -> bool:
        """Deletes the topic with its consumers and queue state.

        Args:
            if_empty: raise `Conflict` if the topic has records (default: False).

        Returns:
            False if the topic does not exist.
        """
        return bool(json.loads(self._backend.delete_topic(self.name, if_empty))["deleted"])

    def __repr__(self) -> str:
        return show.topic_text(self)

    def _repr_html_(self) -> str:
        return show.topic_html(self)


def ack_of(acked: Acked) -> Ack:
    """The ack of a write, from the tuple of the backend."""
    topic_id, first, last, head, count, created, deduped, durability = acked
    return Ack(topic_id, first, last, head, count, created, deduped, cast("Durability", durability))
