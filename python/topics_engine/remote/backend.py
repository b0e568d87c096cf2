"""The backend of a server: each verb is a request."""

from __future__ import annotations

import json
import os
import threading
import weakref
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..client.backend import Backend, RemoteBackend
from ..client.encoding import matcher, rows_of, written
from ..client.page import Page, body_of_rows
from ..client.read import PAGE_RECORDS
from ..client.request import encode_json, without_none
from ..errors import AlreadyExists, NotFound
from .caller import ARROW, Caller, CallStatus, WaitBudget
from .consumer import RemoteConsumer
from .prefetch import Prefetcher
from .queue import LONGEST, RemoteQueue, extend_renewed
from .renewal import LeaseRenewer
from .transport import Options, Transport, closed, forked
from .watch import RemoteWatch, WatchOptions

if TYPE_CHECKING:
    from .._core import (
        _Acked,
        _Acks,
        _Committed,
        _NewRow,
        _Outcome,
        _Renewal,
        _Stream,
        _TxnRows,
        _WatchStart,
    )


_How = tuple[int, int, tuple[str, ...], str | None, bool]
"""Limit, bytes, skipped nodes, match, strong."""


class HttpBackend(Backend, RemoteBackend):
    """A server. Thread-safe if its transport is."""

    caller: Caller
    is_remote = True

    def __init__(self, transport: Transport, options: Options, *, may_block: bool) -> None:
        self.caller = Caller(transport, options)
        self.options = options
        # Whether creating a handle may block; under asyncio it may not.
        self._may_block = may_block
        self._pid = os.getpid()
        self._closed = False
        self._lock = threading.Lock()
        self._prefetcher: Prefetcher[Page] = Prefetcher()
        self._streams: weakref.WeakSet[Any] = weakref.WeakSet()
        self._consumers: weakref.WeakSet[RemoteConsumer] = weakref.WeakSet()
        self._renewing: Caller | None = None
        self.leases = LeaseRenewer(self._renew)

    @property
    def path(self) -> str:
        return self.options.url

    @property
    def closed(self) -> bool:
        return self._closed or self._pid != os.getpid()

    def check(self) -> None:
        if self._pid != os.getpid():
            raise forked()
        if self._closed:
            raise closed()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self.leases.close()
            if self._renewing is not None:
                self._renewing.transport.close()
            self.caller.transport.close()

    def _renew(self, renewal: _Renewal) -> _Outcome:
        """Renews leases, from the thread of the renewer: an event loop may be busy."""
        from .sync_transport import SyncTransport

        if self._renewing is None:
            self._renewing = Caller(SyncTransport(self.options), self.options)
            if self._closed:
                self._renewing.transport.close()
        return extend_renewed(self._renewing, renewal)

    def append(
        self,
        topic: str,
        records: Sequence[_NewRow],
        *,
        node: str | None = None,
        key: str | None = None,
        expect_head: int | None = None,
        sync: bool = False,
        create: bool | None = None,
        config: bytes | None = None,
        disable_backpressure: bool = True,
    ) -> _Acked:
        fields = without_none(
            node=node,
            idempotency_key=key or self.caller.key(),
            expect_head=expect_head,
            sync=sync or None,
            create=create,
            disable_backpressure=disable_backpressure,
        )
        raw = b'"config":%b,' % config if config is not None else b""
        body = body_of_rows(records, encode_json(fields)[1:-1] + b"," + raw)
        query = {"return_seqs": False}
        answer = self.caller.call(
            "write", topic, body, query=query, hot=True, retry_refusals=disable_backpressure
        )
        return _acked(json.loads(answer), named=key is not None)

    def append_batch(
        self, topic: str, records: Sequence[bytes], *, tag: str | None = None, **how: Any
    ) -> _Acked:
        rows: list[_NewRow] = [(record, True, tag, None, None, 0) for record in records]
        return self.append(topic, rows, **how)

    def append_table(
        self,
        topic: str,
        config: bytes | None,
        table: Any,
        tag: str | None,
        node: str | None,
        key: str | None,
    ) -> _Acked:
        if config is not None:
            return self.append(topic, rows_of(table, tag), node=node, key=key, config=config)
        # Says which extra is missing.
        rows = written(table)
        import pyarrow

        sink = pyarrow.BufferOutputStream()
        with pyarrow.ipc.new_stream(sink, rows.schema) as writer:
            writer.write_table(rows)
        query = {"tag": tag, "node": node, "key": key or self.caller.key(), "return_seqs": False}
        body = sink.getvalue().to_pybytes()
        answer = self.caller.call("write", topic, body, query=query, content=ARROW)
        return _acked(json.loads(answer), named=key is not None)

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
        wait: float = 0.0,
    ) -> Page:
        self.check()
        nodes = tuple(skip_nodes or ())
        how = (limit, max_bytes, nodes, match, strong)
        page = None
        if topic_id is not None and after is not None and not wait:
            page = self._prefetcher.take((topic, after, upto, topic_id, *how))
        if page is None:
            start: dict[str, Any] = {"from_seq": after if after is not None else "earliest"}
            if tail is not None:
                start = without_none(tail=tail, before_seq=before)
            page = self._page(topic, start, upto, topic_id, wait, *how)
        if topic_id is not None and upto is not None and limit == PAGE_RECORDS:
            self._prefetch(topic, page, upto, how)
        return page

    def _prefetch(self, topic: str, page: Page, upto: int, how: _How) -> None:
        """Starts to fetch the page that a continuing read will request next."""
        after, topic_id = page.next_from_seq, page.topic_id
        if after >= upto or page.caught_up or page.tombstone is not None:
            return
        start = {"from_seq": after}
        key = (topic, after, upto, topic_id, *how)

        def fetch() -> Page:
            return self._page(topic, start, upto, topic_id, 0.0, *how)

        self._prefetcher.begin(key, lambda: self.caller.transport.begin(fetch))

    def _page(
        self,
        topic: str,
        start: dict[str, Any],
        upto: int | None,
        topic_id: int | None,
        wait: float,
        limit: int,
        max_bytes: int,
        nodes: tuple[str, ...],
        match: str | None,
        strong: bool,
    ) -> Page:
        body = without_none(
            limit=min(limit, 1000) or None,
            max_batch_bytes=min(max_bytes, 8 << 20),
            node=list(nodes) or None,
            match=matcher(match),
            topic_id=topic_id,
            consistency="strong" if strong else None,
            include_tags=True,
            wait_ms=round(wait * 1000) or None,
        )
        raw = encode_json(start | body)
        return Page(self.caller.call("diff", topic, raw, hot=not wait, wait=wait), upto=upto)

    def wait(self, topic: str, seq: int, timeout: float | None = None) -> bool:
        budget = WaitBudget(timeout)
        while True:
            wait = budget.next_wait(LONGEST)
            page = self.read(topic, after=seq, limit=1, max_bytes=1, wait=wait)
            if page.head_seq > seq:
                return True
            if budget.is_spent:
                return False

    def watch(
        self,
        topics: Sequence[_WatchStart],
        patterns: Sequence[_WatchStart],
        *,
        lenient: bool = False,
        skip_nodes: Sequence[str] | None = None,
        match: str | None = None,
        limit: int = 256,
        max_batch_bytes: int = 262144,
        strong: bool = False,
        queue_frames: int = 1024,
        queue_bytes: int = 16777216,
        stall_ms: int | None = None,
    ) -> RemoteWatch:
        asked = WatchOptions(tuple(skip_nodes or ()), match, limit, max_batch_bytes, strong)
        source = RemoteWatch(self, topics, patterns, lenient, asked)
        if self._may_block:
            source.begin()
        return source

    def create(self, topic: str, config: bytes | None = None, create: bool | None = None) -> bytes:
        query, status = {"create": create}, CallStatus()
        try:
            return self.caller.call("create", topic, config or b"{}", query=query, status=status)
        except AlreadyExists as error:
            if not status.outcome_unknown:
                raise
            message = (
                f"{error}; an attempt of this call, whose answer was lost, may have created it"
            )
            raise AlreadyExists(message, detail={**error.detail, "outcome": "unknown"}) from error

    def scan(self, topic: str, request: Mapping[str, Any], limit: int | None = None) -> _Stream:
        if limit is None:
            return super().scan(topic, request)
        from .scan import scan_first

        # A stream is fetched whole, so the server is told the limit.
        return scan_first(self.caller, topic, request, limit)

    def scan_range(self, topic: str, request: bytes) -> _Stream:
        from .scan import scan_range

        return scan_range(self.caller, topic, request)

    def queue(self, name: str) -> RemoteQueue:
        return RemoteQueue(self, name)

    def consumer(
        self, topic: str, name: str, mode: str | None, start: str, auto_commit: bool
    ) -> RemoteConsumer:
        consumer = RemoteConsumer(self, topic, name, mode, start, auto_commit)
        with self._lock:
            self._consumers.add(consumer)
        return consumer

    def transact(
        self,
        rows: Sequence[_TxnRows],
        *,
        writer: str | None = None,
        epoch: int | None = None,
        key: str | None = None,
        heads: Mapping[str, int],
        commits: Sequence[tuple[str, str, int, str | None]] = (),
        acks: Sequence[_Acks] = (),
    ) -> _Committed:
        """As `Backend.transact`, in one request that is safe to repeat: the epoch of the writer
        identifies it, or without a writer an idempotency key.
        """
        is_named = writer is not None or key is not None
        if writer is not None and epoch is None:
            # Without an epoch the server would assign a new one to each repeat.
            epoch = self._last_epoch(writer) + 1
        epoch_now, deduped, topics = super().transact(
            rows,
            writer=writer,
            epoch=epoch,
            key=key if is_named else self.caller.key(),
            heads=heads,
            commits=commits,
            acks=acks,
        )
        for consumer in list(self._consumers):
            for topic, name, seq, _ in commits:
                if (consumer.topic, consumer.name) == (topic, name):
                    consumer.committed(seq)
        return epoch_now, deduped and is_named, topics

    def _last_epoch(self, writer: str) -> int:
        try:
            state = self.caller.json("txn_writer", part=writer)
        except NotFound:
            return 0
        return int(state.get("last_epoch") or 0)


def _acked(answer: dict[str, Any], *, named: bool) -> _Acked:
    return (
        answer["topic_id"],
        answer["first_seq"],
        answer["last_seq"],
        answer["head_seq"],
        answer["count"],
        answer["created"],
        # A dedup of this client's own retry is not a dedup for the caller.
        named and answer["deduped"],
        answer["durability"],
    )
