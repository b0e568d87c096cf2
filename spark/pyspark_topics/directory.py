"""Topics of a data directory or backup, by the engine's read-only scanner, in this process."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import pyarrow as pa

from .access import ScanRequest
from .errors import InvalidOption, TopicsError
from .options import Connection, Subscription
from .planning import Head, Range
from .server import asked_of, ends_of, head_of

T = TypeVar("T")


class Directory:
    """See `Access`. Any number of processes may read a directory; nobody may have it open to
    write."""

    def __init__(self, to: Connection) -> None:
        assert to.path is not None
        path = to.path.removeprefix("file://")
        try:
            from topics_engine import _core
        except ImportError as e:
            raise InvalidOption(f"reading a directory needs the package topics_engine: {e}") from e
        engine: Any = _core.Engine
        if not hasattr(engine, "scan_range"):
            raise InvalidOption("this version of topics_engine cannot open a directory read-only")
        self._engine = _told(lambda: engine.open(path, {}, read_only=True))

    def heads(self, topics: Subscription) -> dict[str, Head]:
        names = topics.names if topics.pattern is None else self._names(topics)
        found = {}
        for name in names:
            try:
                found[name] = self._head(name)
            except TopicsError as e:
                if e.code != "topic_not_found":
                    raise
        return found

    def _head(self, topic: str) -> Head:
        return head_of(json.loads(_told(lambda: self._engine.state(topic))))

    def _names(self, topics: Subscription) -> Iterator[str]:
        after = None
        while True:
            page = json.loads(self._engine.list(topics.prefix, after, 1000))["topics"]
            if not page:
                return
            yield from (one["topic"] for one in page if topics.matches(one["topic"]))
            after = page[-1]["topic"]

    def split(self, whole: Range, records: int) -> Sequence[int]:
        return ends_of(whole, self._split(whole, {"max_records": records}))

    def fill(self, whole: Range, size: int) -> int:
        return ends_of(whole, self._split(whole, {"max_bytes": max(1, size)}))[0]

    def _split(self, whole: Range, size: dict[str, int]) -> dict[str, Any]:
        body = {"from_seq": whole.lo - 1, "to_seq": whole.hi - 1, **size}
        request = json.dumps(body).encode()
        answer = json.loads(_told(lambda: self._engine.split(whole.topic, request)))
        assert isinstance(answer, dict)
        return answer

    def seek(self, topic: str, ts_ms: int) -> int:
        return _told(lambda: int(self._engine.seek(topic, ts_ms))) + 1

    @contextmanager
    def scan(self, request: ScanRequest) -> Iterator[LocalScan]:
        yield LocalScan(self._engine, request)

    def explain(self, request: ScanRequest) -> TopicsError | None:
        """Nothing breaks off here without saying why."""
        return None


class LocalScan:
    """A range, read in this process."""

    def __init__(self, engine: Any, request: ScanRequest) -> None:
        body = json.dumps(asked_of(request)).encode()
        self._stream = _told(lambda: engine.scan_range(request.topic, body))
        self.topic_id: int = self._stream.topic_id
        self.to_seq: int = self._stream.to_seq

    def batches(self) -> Iterator[pa.RecordBatch]:
        try:
            yield from pa.RecordBatchReader.from_stream(self._stream)
        except (pa.ArrowInvalid, OSError) as e:
            raise TopicsError(str(e)) from e


def _told(call: Callable[[], T]) -> T:
    """The engine's errors as this package's, which need no native module to be understood."""
    import topics_engine

    try:
        return call()
    except topics_engine.TopicsError as e:
        raise TopicsError(str(e), e.code, dict(e.detail or {})) from e
