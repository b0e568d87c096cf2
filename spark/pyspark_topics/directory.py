"""Topics of a data directory, a backup or a prefix of an object store, read by the engine in
read-only mode, in this process."""

from __future__ import annotations

import atexit
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa

from .access import ScanRequest
from .errors import InvalidOption, TopicsError
from .fields import Splits, head_of, scan_body
from .options import Connection, Subscription, is_prefix
from .planning import Head, Range

T = TypeVar("T")

VIEW_SECONDS = 1.0
"""For so long a plan uses the view of a prefix without asking whether there is a newer state."""


def backend(path: str, settings: dict[str, str] | None = None, **form: Any) -> Any:
    """Opens a directory or a prefix in read-only mode."""
    try:
        from topics_engine import _core
        from topics_engine.client.embedded import EmbeddedBackend
    except ImportError as e:
        raise InvalidOption(
            f"reading a directory or an object store needs the package topics_engine: {e}"
        ) from e
    return EmbeddedBackend(_core.Engine.open(path, settings or {}, read_only=True, **form))


class View:
    """A prefix as this process reads it. It stays open, because an open fetches the base, and for
    all records the log and the active segments; what is read of sealed segments is fetched from the
    store each time."""

    def __init__(self, opens: Callable[[], Any]) -> None:
        self._opens = opens
        self.engine = opens()
        self._asked = time.monotonic()

    def refresh(self, wait: float = 0.0) -> None:
        """Opens the newest state, unless this is it, or was it less than `wait` seconds ago."""
        if time.monotonic() < self._asked + wait:
            return
        if not self._is_current():
            newer = self._opens()
            self.engine.close()
            self.engine = newer
        self._asked = time.monotonic()

    def _is_current(self) -> bool:
        import topics_engine

        try:
            return bool(self.engine.engine.is_current())
        except topics_engine.InvalidRequest:
            # Its base was deleted.
            return False


_views: dict[tuple[int, str], View] = {}
"""By process and URL: a forked child cannot use an engine of its parent. Spark's workers are reused
for many tasks of a job."""


def close_views(views: dict[tuple[int, str], View]) -> None:
    while views:
        views.popitem()[1].engine.close()


atexit.register(close_views, _views)


class Directory(Splits):
    """See `Access`. Any number of processes may read a directory while no process has it open
    for writing; a prefix may be read at any time. Not thread-safe."""

    def __init__(self, to: Connection) -> None:
        assert to.path is not None
        path = to.path if is_prefix(to.path) else to.path.removeprefix("file://")
        settings = {} if to.remote is None else {"remote_url": to.remote}
        self._needs_remote = to.remote is None and not is_prefix(to.path)
        self._opens: Callable[[], Any] = partial(backend, path, settings)
        self._prefix = path if is_prefix(to.path) else None
        self._engine: Any = None
        self._uses = 0

    @contextmanager
    def keep_open(self) -> Iterator[None]:
        if self._prefix is not None:
            # Its view stays open from the first use on. There may be none.
            yield
            return
        with self._open():
            yield

    @contextmanager
    def _open(self) -> Iterator[Any]:
        """The engine. Of a directory it is open only while it is used: Spark's workers keep
        running, and a directory that they have open cannot be opened for writing."""
        if self._prefix is not None:
            yield self._view(self._prefix).engine
            return
        if self._uses == 0:
            self._engine = as_topics_error(self._opens)
        self._uses += 1
        try:
            yield self._engine
        finally:
            self._uses -= 1
            if self._uses == 0:
                self._engine.close()
                self._engine = None

    def _view(self, url: str) -> View:
        key = (os.getpid(), url)
        if key not in _views:
            _views[key] = as_topics_error(lambda: View(self._opens))
        return _views[key]

    def _refresh(self, wait: float = 0.0) -> None:
        if self._prefix is not None:
            view = self._view(self._prefix)
            as_topics_error(lambda: view.refresh(wait))

    def _refresh_below(self, topic: str, upto: int) -> None:
        """Before a range is read that another process has planned by a newer state."""
        if self._prefix is None:
            return
        state = self._view(self._prefix).engine.state
        try:
            is_there = head_of(json.loads(as_topics_error(lambda: state(topic)))).end > upto
        except TopicsError:
            is_there = False
        if not is_there:
            self._refresh()

    def heads(self, topics: Subscription) -> dict[str, Head]:
        found = {}
        self._refresh(VIEW_SECONDS)
        with self._open() as engine:
            names = topics.names if topics.pattern is None else _names(engine, topics)
            for name in names:
                try:
                    found[name] = head_of(json.loads(as_topics_error(partial(engine.state, name))))
                except TopicsError as e:
                    if e.code != "topic_not_found":
                        raise
        return found

    def _split(self, topic: str, asked: dict[str, int]) -> dict[str, Any]:
        request = json.dumps(asked).encode()
        with self._open() as engine:
            answer: dict[str, Any] = json.loads(
                as_topics_error(lambda: engine.split(topic, request))
            )
        return answer

    def segments(self, topic: str) -> dict[str, Any]:
        """The answer of `GET /v0/topics/:t/segments`."""
        with self._open() as engine:
            return segments_of(engine, topic)

    def cut(self, ranges: Sequence[Range]) -> list[Range]:
        return list(ranges)

    def seek(self, topic: str, ts_ms: int) -> int:
        with self._open() as engine:
            return as_topics_error(lambda: int(engine.seek(topic, ts_ms))) + 1

    @contextmanager
    def scan(self, request: ScanRequest) -> Iterator[LocalScan]:
        self._refresh_below(request.topic, request.upto)
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
        self._stream = as_topics_error(lambda: engine.scan_range(request.topic, body))
        self.topic_id: int = self._stream.topic_id
        self.to_seq: int = self._stream.to_seq

    def batches(self) -> Iterator[pa.RecordBatch]:
        try:
            yield from pa.RecordBatchReader.from_stream(self._stream)
        except (pa.ArrowInvalid, OSError) as e:
            as_topics_error(self._stream.check)
            raise TopicsError(str(e)) from e


def segments_of(engine: Any, topic: str) -> dict[str, Any]:
    """Where the records of a topic lie."""
    found = as_topics_error(lambda: engine.caller.call("segments", topic))
    answer: dict[str, Any] = json.loads(found)
    return answer


def _names(engine: Any, topics: Subscription) -> Iterator[str]:
    names = (one["topic"] for one in engine.topics(topics.prefix))
    yield from filter(topics.matches, names)


def as_topics_error(call: Callable[[], T]) -> T:
    """Converts the engine's errors into this package's, which can be unpickled without the
    native module."""
    import topics_engine

    try:
        return call()
    except topics_engine.TopicsError as e:
        raise TopicsError(str(e), e.code, dict(e.detail or {})) from e
