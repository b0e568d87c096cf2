"""What the handles stand on: verbs that take and give bytes.

The native engine is one backend. A connection to a server is another; it belongs beside this file
and needs nothing of the handles changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

Row = tuple[int, int, str | None, str | None, bytes | None, bytes, bool]
"""`(seq, ts, node, tag, meta, stored, binary)`."""

NewRow = (
    tuple[bytes, bool, str | None, str | None, bytes | None, int]
    | tuple[
        bytes, bool, str | None, str | None, bytes | None, int, int | None, str | None, int, int
    ]
)
"""`(data, binary, tag, node, meta, ttl_ms)`; of jobs also `(lane, group, delay_ms, deliver_at)`."""

Acked = tuple[int, int, int, int, int, bool, bool, str]
"""`(topic_id, first_seq, last_seq, head_seq, count, created, deduped, durability)`."""


class Page(Protocol):
    """What one read returned."""

    @property
    def topic_id(self) -> int: ...
    @property
    def tombstone(self) -> tuple[int, int, str, int, int, int] | None: ...
    @property
    def next_from_seq(self) -> int: ...
    @property
    def head_seq(self) -> int: ...
    @property
    def caught_up(self) -> bool: ...
    def __len__(self) -> int: ...
    def rows(self) -> list[Row]: ...
    def payloads(self) -> list[bytes]: ...


class Stream(Protocol):
    """A range as an Arrow C stream."""

    @property
    def topic_id(self) -> int: ...
    @property
    def to_seq(self) -> int: ...
    def __arrow_c_stream__(self, requested_schema: object | None = None) -> Any: ...


WatchStart = tuple[str, int | None, int | None, int | None]
"""`(name, after, tail, topic_id)`."""

Told = tuple[str, str, int, Page | None, tuple[int, int, str, int, int, int] | None, int | None]
"""`(kind, topic, topic_id, records, gap, seq)`."""


class Source(Protocol):
    """An open subscription."""

    def next(self, timeout: float | None = None) -> Told | None: ...
    def close(self) -> None: ...
    def cursors(self) -> list[tuple[str, int, int]]: ...


class Backend(Protocol):
    """An engine, here or elsewhere."""

    @property
    def path(self) -> str: ...
    @property
    def closed(self) -> bool: ...
    def close(self) -> None: ...
    def append(
        self,
        topic: str,
        records: Sequence[NewRow],
        *,
        node: str | None = None,
        key: str | None = None,
        expect_head: int | None = None,
        sync: bool = False,
        create: bool | None = None,
        config: bytes | None = None,
        disable_backpressure: bool = True,
    ) -> Acked: ...
    def append_batch(
        self,
        topic: str,
        records: list[bytes],
        *,
        tag: str | None = None,
        node: str | None = None,
        key: str | None = None,
        expect_head: int | None = None,
        sync: bool = False,
        create: bool | None = None,
        config: bytes | None = None,
        disable_backpressure: bool = True,
    ) -> Acked: ...
    def read(
        self,
        topic: str,
        *,
        after: int | None = None,
        tail: int | None = None,
        before: int | None = None,
        upto: int | None = None,
        limit: int = 256,
        max_bytes: int = 1 << 20,
        skip_nodes: Sequence[str] | None = None,
        match: str | None = None,
        topic_id: int | None = None,
        strong: bool = False,
        touch: bool = True,
    ) -> Page: ...
    def watch(
        self,
        topics: Sequence[WatchStart],
        patterns: Sequence[WatchStart],
        *,
        lenient: bool = False,
        skip_nodes: Sequence[str] | None = None,
        match: str | None = None,
        limit: int = 256,
        strong: bool = False,
    ) -> Source: ...
    def scan(
        self,
        topic: str,
        *,
        after: int | None = None,
        upto: int | None = None,
        skip_nodes: Sequence[str] | None = None,
        match: str | None = None,
        topic_id: int | None = None,
        binary: bool | None = None,
        batch_bytes: int = 4 << 20,
    ) -> Stream: ...
    def wait(self, topic: str, seq: int, timeout: float | None = None) -> bool: ...
    def seek(self, topic: str, ts: int) -> int: ...
    def delete(
        self, topic: str, before_seq: int | None = None, match: str | None = None
    ) -> bytes: ...
    def create(self, topic: str, config: bytes | None = None) -> bytes: ...
    def delete_topic(self, topic: str, if_empty: bool = False) -> bytes: ...
    def create_router(
        self,
        router: str,
        source: str,
        dest: str,
        *,
        preserve_node: bool = True,
        preserve_tag: bool = True,
        match: str | None = None,
        create_dest: bool = True,
        allow_cycle: bool = False,
        exactly_once: bool = False,
    ) -> bool: ...
    def delete_router(self, router: str) -> bool: ...
    def router(self, router: str) -> bytes: ...
    def routers(self, prefix: str = "") -> bytes: ...
    def state(self, topic: str, touch: bool = False) -> bytes: ...
    def list(self, prefix: str = "", after: str | None = None, limit: int = 100) -> bytes: ...
    def sync(self, topic: str | None = None) -> None: ...
    def checkpoint(self) -> None: ...
    def verify(self) -> bytes: ...
    def metrics(self, json: bool = False) -> bytes: ...
