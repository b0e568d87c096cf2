"""Topics of a data directory, a backup or a prefix of an object store, read by the engine in
read-only mode, in this process."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa

from .access import ScanRequest
from .errors import InvalidOption, TopicsError
from .fields import Splits, head_of, scan_body
from .options import Connection, Subscription, is_prefix
from .planning import Head

T = TypeVar("T")


class Directory(Splits):
    """See `Access`. Any number of processes may read a directory while no process has it open
    for writing; a prefix may be read at any time. Not thread-safe."""

    def __init__(self, to: Connection) -> None:
        assert to.path is not None
        path = to.path if is_prefix(to.path) else to.path.removeprefix("file://")
        try:
            from topics_engine import _core
            from topics_engine.client.embedded import EmbeddedBackend
        except ImportError as e:
            raise InvalidOption(f"reading a directory needs the package topics_engine: {e}") from e

        settings = {} if to.remote is None else {"remote_url": to.remote}
        self._needs_remote = to.remote is None and not is_prefix(to.path)

        def opened() -> EmbeddedBackend:
            return EmbeddedBackend(_core.Engine.open(path, settings, read_only=True))

        self._opens: Callable[[], Any] = opened
        self._engine: Any = None
        self._uses = 0

    @contextmanager
    def keep_open(self) -> Iterator[None]:
        with self._open():
            yield

    @contextmanager
    def _open(self) -> Iterator[Any]:
        """The engine, open only while it is used: Spark's workers keep running, and a directory
        that they have open cannot be opened for writing."""
        if self._uses == 0:
            self._engine = _as_topics_error(self._opens)
        self._uses += 1
        try:
            yield self._engine
        finally:
            self._uses -= 1
            if self._uses == 0:
                self._engine.close()
                self._engine = None

    def heads(self, topics: Subscription) -> dict[str, Head]:
        found = {}
        with self._open() as engine:
            names = topics.names if topics.pattern is None else _names(engine, topics)
            for name in names:
                try:
                    found[name] = head_of(json.loads(_as_topics_error(partial(engine.state, name))))
                except TopicsError as e:
                    if e.code != "topic_not_found":
                        raise
        return found

    def _split(self, topic: str, asked: dict[str, int]) -> dict[str, Any]:
        request = json.dumps(asked).encode()
        with self._open() as engine:
            answer: dict[str, Any] = json.loads(
                _as_topics_error(lambda: engine.split(topic, request))
            )
        return answer

    def seek(self, topic: str, ts_ms: int) -> int:
        with self._open() as engine:
            return _as_topics_error(lambda: int(engine.seek(topic, ts_ms))) + 1

    @contextmanager
    def scan(self, request: ScanRequest) -> Iterator[LocalScan]:
        with self._open() as engine:
            try:
                yield LocalScan(engine, request)
            except TopicsError as e:
                self._refuse_cold(e)
                raise

    def _refuse_cold(self, error: TopicsError) -> None:
        """Raises what no wait can mend: a record is in an object store that is not named."""
        if error.code == "cold_unavailable" and self._needs_remote:
            raise InvalidOption(
                f'{error.message}: name it with the option "remote" (s3://… or file:///…)'
            ) from error


class LocalScan:
    """A range, read in this process."""

    def __init__(self, engine: Any, request: ScanRequest) -> None:
        body = json.dumps(scan_body(request)).encode()
        self._stream = _as_topics_error(lambda: engine.scan_range(request.topic, body))
        self.topic_id: int = self._stream.topic_id
        self.to_seq: int = self._stream.to_seq

    def batches(self) -> Iterator[pa.RecordBatch]:
        try:
            yield from pa.RecordBatchReader.from_stream(self._stream)
        except (pa.ArrowInvalid, OSError) as e:
            raise TopicsError(str(e)) from e


def _names(engine: Any, topics: Subscription) -> Iterator[str]:
    names = (one["topic"] for one in engine.topics(topics.prefix))
    yield from filter(topics.matches, names)


def _as_topics_error(call: Callable[[], T]) -> T:
    """Converts the engine's errors into this package's, which can be unpickled without the
    native module."""
    import topics_engine

    try:
        return call()
    except topics_engine.TopicsError as e:
        raise TopicsError(str(e), e.code, dict(e.detail or {})) from e
