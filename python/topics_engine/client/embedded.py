"""The backend of an engine in this process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .. import _core
from .backend import Backend
from .consumer_verbs import ConsumerVerbs
from .encoding import rows_of
from .jobs import QueueVerbs
from .request import JSON, encode_query

if TYPE_CHECKING:
    from .._core import _Jobs, _Outcome, _Page
    from .backend import Acked

NATIVE = ("append", "append_batch", "read", "wait", "watch", "scan_range", "check")
"""The verbs of the native module that the handles call without a frame between."""


class LocalCaller:
    """The transport to the engine of this process."""

    def __init__(self, engine: _core.Engine) -> None:
        self._engine = engine

    def call(
        self,
        verb: str,
        name: str = "",
        body: bytes | None = None,
        *,
        part: str = "",
        query: Mapping[str, Any] | None = None,
        accept: str = JSON,
        long: bool = False,
        repeatable: bool = True,
    ) -> bytes:
        """See `Caller.call`. Nothing is repeated."""
        asked = encode_query(query).encode()
        return self._engine.call(verb, name, part, asked, body, accept == JSON, long)


class EmbeddedQueue(QueueVerbs):
    """A queue of this process; its leases are renewed by a thread of the native module."""

    def __init__(self, backend: EmbeddedBackend, name: str) -> None:
        super().__init__(backend, name)
        self._engine = backend.engine

    def claim(
        self, node: str, max: int = 1, lease_ms: int | None = None, wait: float = 0.0
    ) -> _Jobs:
        return self._engine.claim(self._name, node, max, lease_ms, wait)

    def ack(self, node: str, seqs: list[int], lease_ids: list[int] | None = None) -> _Outcome:
        return self._engine.ack(self._name, node, seqs, lease_ids)

    def work(self, node: str, max: int = 1, lease_ms: int | None = None) -> _core.Work:
        return _core.Work(self._engine, self._name, node, max, lease_ms)


class EmbeddedConsumer(ConsumerVerbs):
    """A consumer of this process. The native handle of its reader has the position."""

    def __init__(
        self,
        backend: EmbeddedBackend,
        topic: str,
        name: str,
        mode: str | None,
        start: str,
        auto_commit: bool,
    ) -> None:
        self.reader = None
        self._engine = backend.engine
        super().__init__(backend, topic, name, mode, start, auto_commit)

    @property
    def cursor(self) -> int:
        return int(self._answer("consumer")["cursor"])

    def read(
        self,
        max_bytes: int,
        max_records: int,
        checkpoint: bool,
        wait: float,
        match: str | None,
        fail_if_busy: bool,
    ) -> _Page:
        how = (max_bytes, max_records, checkpoint, wait, match, fail_if_busy)
        page = self._engine.consumer_read(self.topic, self.name, self.reader, how)
        self.check(page)
        return page

    def __del__(self) -> None:
        if self.reader is not None:
            self._engine.forget_reader(self.topic, self.name, self.reader)


class EmbeddedBackend(Backend):
    """An open data directory."""

    is_remote = False

    def __init__(self, engine: _core.Engine) -> None:
        self.engine = engine
        self.caller = LocalCaller(engine)
        for verb in NATIVE:
            setattr(self, verb, getattr(engine, verb))

    @property
    def path(self) -> str:
        return self.engine.path

    @property
    def closed(self) -> bool:
        return self.engine.closed

    def close(self) -> None:
        self.engine.close()

    def append_table(
        self,
        topic: str,
        config: bytes | None,
        table: Any,
        tag: str | None,
        node: str | None,
        key: str | None,
    ) -> Acked:
        return self.append(topic, rows_of(table, tag), node=node, key=key, config=config)

    def queue(self, name: str) -> EmbeddedQueue:
        return EmbeddedQueue(self, name)

    def consumer(
        self, topic: str, name: str, mode: str | None, start: str, auto_commit: bool
    ) -> EmbeddedConsumer:
        return EmbeddedConsumer(self, topic, name, mode, start, auto_commit)
