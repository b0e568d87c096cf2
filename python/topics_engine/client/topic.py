"""A topic's handle."""

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
    """A topic by name; thread-safe.

    The topic is created by the first write or by `create`. The config that the handle was made with
    applies then; where the topic exists and differs in a named field, that is a `Conflict`.
    """

    __slots__ = ("_backend", "_config", "name")

    def __init__(self, backend: Backend, name: str, config: Mapping[str, Any]) -> None:
        self._backend = backend
        self.name = name
        self._config = dump(dict(config)) if config else None

    def create(self, /, **config: Any) -> TopicState:
        """Creates the topic, or updates the named fields of its config."""
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
        """Appends one record, or a list or tuple of them as one batch, all or nothing.

        `bytes` are stored as they are, anything else as JSON; `New` carries options of one record.
        `key` makes a repeat return the first answer; `expect_head` makes the write conditional;
        `sync` waits until it is durable, whatever the class. `wait=False` is refused with
        `Throttled` instead of waiting for room.
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
        """Appends raw bytes, a record each, without looking at them."""
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
        """Appends the rows of an Arrow table, or of anything with an Arrow C stream, as one batch.

        `data` is JSON text where it is utf8, bytes where it is binary. `tag`, `node` and `meta` (a
        map) are optional columns, and other ones are passed over; the arguments are for rows
        without.
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
        """Records after a seq, up to and with `upto` or the present head; then it stops.

        `match` is a tag, or a prefix with `*`; records of the nodes named are skipped. Involuntary
        loss is a `Gap` among the records, an exception (`gaps="raise"`), or left out
        (`gaps="skip"`); it is always in `.gaps`.
        """
        return Read(self._backend, self.name, after, upto, limit, match, node, gaps)

    def tail(self, count: int) -> list[Item]:
        """The newest records, oldest first."""
        page = self._backend.read(self.name, tail=count, limit=count, max_bytes=1 << 30)
        items = all_of(self.name, page)
        if page.next_from_seq < page.head_seq and not page.caught_up:
            # A server's page is not that long.
            rest = self.read(page.next_from_seq, upto=page.head_seq, limit=count - len(page))
            items.extend(rest)
        return items

    def wait(self, after: int, wait: float | None = None) -> bool:
        """Waits until there is something after a seq; false when `wait` seconds have passed."""
        return self._backend.wait(self.name, after, wait)

    def consumer(
        self,
        name: str,
        mode: Mode | None = None,
        *,
        start: Literal["start", "end"] = "start",
        auto_commit: bool = False,
    ) -> Consumer:
        """A reader whose cursor the engine stores; created if it is not there.

        `at_least_once` (the default) stores it by `commit`, or with `auto_commit` at the next read;
        `at_most_once` stores it durably before records are handed out.
        """
        native = consumer_of(self._backend, self.name, name, mode, start, auto_commit)
        return Consumer(self._backend, native, self.name, name)

    def consumers(self) -> list[ConsumerInfo]:
        """The topic's consumers in name order."""
        found = self._backend.consumers(self.name)
        return [
            ConsumerInfo(self.name, name, cast("Mode", mode), *rest) for name, mode, *rest in found
        ]

    def drop_consumer(self, name: str) -> bool:
        """Deletes a consumer and its cursor; false when there was none."""
        return self._backend.delete_consumer(self.name, name)

    def seek(self, ts: int | datetime) -> int:
        """The cursor just before the first record at or after a time (epoch ms, or aware)."""
        if isinstance(ts, datetime):
            ts = int(ts.timestamp() * 1000)
        return self._backend.seek(self.name, ts)

    def delete(self, *, before: int | None = None, match: str | None = None) -> Deleted:
        """Deletes records: those with a smaller seq, those with a matching tag, or both at once."""
        fields = json.loads(self._backend.delete(self.name, before, match))
        return Deleted(**{name: fields[name] for name in Deleted.__slots__})

    def state(self) -> TopicState:
        """The topic now."""
        return TopicState.from_json(self._backend.state(self.name))

    def sync(self) -> None:
        """Returns when everything acked before is durable."""
        self._backend.sync(self.name)

    def drop(self, *, if_empty: bool = False) -> bool:
        """Deletes the topic and all that belongs to it; false when there was none."""
        return bool(json.loads(self._backend.delete_topic(self.name, if_empty))["deleted"])

    def __repr__(self) -> str:
        return show.topic_text(self)

    def _repr_html_(self) -> str:
        return show.topic_html(self)


def ack_of(acked: Acked) -> Ack:
    """How a write is answered."""
    topic_id, first, last, head, count, created, deduped, durability = acked
    return Ack(topic_id, first, last, head, count, created, deduped, cast("Durability", durability))
