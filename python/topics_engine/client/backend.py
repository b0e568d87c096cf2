"""The backend protocol that the handles call: verbs over bytes, as `_core.pyi` states them.

`_core.Engine` is one backend; `remote.backend.HttpBackend` is the other. The functions here create
the parts that are classes of their own in the native module, so that no handle checks the backend's
type.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol

from .. import _core

if TYPE_CHECKING:
    from .._core import _Acked as Acked
    from .._core import _Acks, _Committed, _Jobs, _Outcome, _PeekedJobs, _TxnRows, _Verbs
    from .._core import _NewRow as NewRow
    from .._core import _Page as Page
    from .._core import _Source as Source
    from .._core import _Stream as Stream
    from .._core import _WatchEvent as WatchEvent
    from .._core import _WatchStart as WatchStart

    class JobStream(Protocol):
        """A stream of jobs, like `_core.Work`."""

        def next(self, wait: float = 0.0) -> _Jobs | None: ...
        def close(self) -> None: ...

    class QueueBackend(Protocol):
        """The jobs of a queue, like `_core.Queue`."""

        def claim(
            self, node: str, max: int = 1, lease_ms: int | None = None, wait: float = 0.0
        ) -> _Jobs: ...
        def peek(self, state: str | None = None, max: int = 100) -> _PeekedJobs: ...
        def ack(
            self, node: str, seqs: list[int], lease_ids: list[int] | None = None
        ) -> _Outcome: ...
        def nack(
            self,
            node: str,
            seqs: list[int],
            lease_ids: list[int] | None = None,
            delay_ms: int | None = None,
            error: str = "",
        ) -> _Outcome: ...
        def release(
            self, node: str, seqs: list[int], lease_ids: list[int] | None = None
        ) -> _Outcome: ...
        def remove(self, seqs: list[int], force: bool = False) -> _Outcome: ...
        def promote(self, seqs: list[int]) -> _Outcome: ...
        def extend(
            self,
            node: str,
            seqs: list[int],
            lease_ids: list[int] | None = None,
            lease_ms: int | None = None,
        ) -> _Outcome: ...
        def redrive(
            self,
            to: str | None = None,
            match: str | None = None,
            seqs: list[int] | None = None,
            limit: int | None = None,
            dry_run: bool = False,
        ) -> int: ...
        def work(self, node: str, max: int = 1, lease_ms: int | None = None) -> JobStream: ...

    class ConsumerBackend(Protocol):
        """A consumer, like `_core.Consumer`."""

        @property
        def mode(self) -> str: ...
        @property
        def cursor(self) -> int: ...
        @property
        def reader(self) -> Any: ...
        def read(
            self,
            max_bytes: int = ...,
            max_records: int = 2000,
            checkpoint: bool = True,
            wait: float = 0.0,
            match: str | None = None,
            fail_if_busy: bool = False,
        ) -> Page: ...
        def commit(self, seq: int) -> None: ...
        def seek(
            self, *, seq: int | None = None, ts: int | None = None, to: str | None = None
        ) -> int: ...
        def drop(self) -> bool: ...

    class TransactionBackend(Protocol):
        """Transactions, like `_core.Transactions`."""

        def transact(
            self,
            rows: Sequence[_TxnRows],
            *,
            writer: str | None = None,
            epoch: int | None = None,
            key: str | None = None,
            heads: list[tuple[str, int]] = ...,
            commits: list[tuple[str, str, int, Any]] = ...,
            acks: list[_Acks] = ...,
        ) -> _Committed: ...
        def forget(self, writer: str) -> bool: ...

    class Backend(_Verbs, Protocol):
        """The verbs of an embedded engine or of a server."""

        def check(self) -> None: ...
        def scan_range(self, topic: str, request: bytes) -> Stream: ...
        def split(self, topic: str, request: bytes) -> bytes: ...
        def consumers(self, topic: str) -> list[tuple[str, str, int, int, int]]: ...
        def delete_consumer(self, topic: str, name: str) -> bool: ...


call_timeout: ContextVar[float] = ContextVar("call_timeout", default=math.inf)
"""Seconds that a call to a server may take, below its deadline. `repr` sets it, so that showing a
handle does not block on an unreachable server.
"""


class RemoteBackend:
    """Marks a backend, or a part of one, whose verbs wait for a server instead of the local disk.

    It creates its own queues, consumers and transactions.
    """

    __slots__ = ()


def append_table(
    backend: Backend,
    topic: str,
    config: bytes | None,
    table: Any,
    tag: str | None,
    node: str | None,
    key: str | None,
) -> Acked:
    """Appends the rows of an Arrow table; a remote append without config sends columns."""
    from .encoding import rows_of

    if isinstance(backend, _core.Engine) or config is not None:
        rows = rows_of(table, tag)
        return backend.append(topic, rows, node=node, key=key, config=config)
    acked: Acked = _remote(backend).append_table(topic, table, tag, node, key)
    return acked


def scan_of(
    backend: Backend, topic: str, request: Mapping[str, Any], limit: int | None = None
) -> Stream:
    """A range as an Arrow stream; `request` is the body of `POST /v0/topics/:t/scan`. The native
    stream is lazy; a remote one is fetched whole, so the server is told the limit.
    """
    if limit is None or isinstance(backend, _core.Engine):
        return backend.scan_range(topic, json.dumps(request).encode())
    found: Stream = _remote(backend).scan_first(topic, request, limit)
    return found


def queue_of(backend: Backend, name: str) -> QueueBackend:
    """The jobs of a queue."""
    if isinstance(backend, _core.Engine):
        return _core.Queue(backend, name)
    made: QueueBackend = _remote(backend).queue(name)
    return made


def consumer_of(
    backend: Backend, topic: str, name: str, mode: str | None, start: str, auto_commit: bool
) -> ConsumerBackend:
    """A consumer, which is created if it does not exist."""
    if isinstance(backend, _core.Engine):
        return _core.Consumer(backend, topic, name, mode, start, auto_commit)
    made: ConsumerBackend = _remote(backend).consumer(topic, name, mode, start, auto_commit)
    return made


def transactions_of(backend: Backend) -> TransactionBackend:
    """The transactions of the backend."""
    if isinstance(backend, _core.Engine):
        return _core.Transactions(backend)
    made: TransactionBackend = _remote(backend).transactions()
    return made


def every_consumer(
    backend: Backend, topic: str | None = None
) -> list[tuple[str, str, str, int, int, int]]:
    """The consumers of one topic, or of all: topic, name, mode, cursor, lag, lag in ms."""
    if topic is None and not isinstance(backend, _core.Engine):
        found: list[tuple[str, str, str, int, int, int]] = _remote(backend).every_consumer()
        return found
    names = [topic] if topic is not None else _topics(backend)
    return [(name, *found) for name in names for found in backend.consumers(name)]


def _topics(backend: Backend) -> list[str]:
    names: list[str] = []
    while True:
        page = json.loads(backend.list("", names[-1] if names else None, 1000))["topics"]
        names += [found["topic"] for found in page]
        if len(page) < 1000:
            return names


def _remote(backend: Backend) -> Any:
    assert isinstance(backend, RemoteBackend)
    return backend


__all__ = [
    "Acked",
    "Backend",
    "ConsumerBackend",
    "JobStream",
    "NewRow",
    "Page",
    "QueueBackend",
    "RemoteBackend",
    "Source",
    "Stream",
    "TransactionBackend",
    "WatchEvent",
    "WatchStart",
    "append_table",
    "call_timeout",
    "consumer_of",
    "every_consumer",
    "queue_of",
    "scan_of",
    "transactions_of",
]
