"""Topics of a server, through its HTTP interface."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any
from urllib.parse import urlencode

import pyarrow as pa

from .access import ScanRequest
from .client import ARROW, BROKEN, Client, path_of
from .errors import Interrupted, TopicsError
from .fields import Splits, head_of, scan_body
from .options import Connection, Subscription
from .planning import Head, Range

STATES = 2_000
"""Topics in one request for states."""
END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"


class Server(Splits):
    """See `Access`."""

    def __init__(self, to: Connection) -> None:
        self._client = Client(to)

    def heads(self, topics: Subscription) -> dict[str, Head]:
        names: Sequence[str] = topics.names
        if topics.pattern is not None:
            try:
                found = self._states({"patterns": [topics.prefix + "*"]})
                return {name: head for name, head in found.items() if topics.matches(name)}
            except TopicsError as e:
                if e.code != "invalid_request":
                    raise
                # More topics than one answer may have: list their names in pages.
                names = [name for name in self._names(topics.prefix) if topics.matches(name)]
        found = {}
        for at in range(0, len(names), STATES):
            found.update(self._states({"topics": list(names[at : at + STATES])}))
        return found

    def _names(self, prefix: str) -> Iterator[str]:
        cursor = ""
        while True:
            query = {"page_size": 1000, "prefix": prefix, **({"cursor": cursor} if cursor else {})}
            page = self._client.call("GET", f"{path_of('topics')}?{urlencode(query)}")
            yield from (topic["topic"] for topic in page["topics"])
            cursor = page.get("next_cursor") or ""
            if not cursor:
                return

    def _states(self, body: dict[str, Any]) -> dict[str, Head]:
        answer = self._client.call("POST", path_of("state"), body)
        return {name: head_of(state) for name, state in answer["topics"].items()}

    def _split(self, topic: str, asked: dict[str, int]) -> dict[str, Any]:
        return self._client.call("POST", path_of("topics", topic, "split"), asked)

    def segments(self, topic: str) -> dict[str, Any]:
        """Where the records of a topic lie."""
        return self._client.call("GET", path_of("topics", topic, "segments"))

    def cut(self, ranges: Sequence[Range]) -> list[Range]:
        return list(ranges)

    def seek(self, topic: str, ts_ms: int) -> int:
        answer = self._client.call("POST", path_of("topics", topic, "seek"), {"ts": ts_ms})
        return int(answer["seq"]) + 1

    @contextmanager
    def scan(self, request: ScanRequest) -> Iterator[HttpScan]:
        """One attempt; the reader knows the position from which to continue."""
        body = scan_body(request)
        if self._client.compression is not None:
            body["compression"] = self._client.compression
        path = path_of("topics", request.topic, "scan")
        whole = False
        try:
            response = self._client.open("POST", path, json.dumps(body).encode(), accept=ARROW)
            scan = HttpScan(response)
            yield scan
            whole = scan.whole
        except BROKEN as e:
            self._client.refuse_permanent(e)
            raise Interrupted(f"{path}: {e!r}", "unavailable") from e
        finally:
            if not whole:
                self._client.close()

    def keep_open(self) -> AbstractContextManager[None]:
        """The connection is kept in any case."""
        return nullcontext()


class HttpScan:
    """The Arrow stream of one answer."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self._body = _Body(response)
        self.whole = False
        """Whether its end was received, so that the connection can be used again."""
        try:
            self._stream = pa.ipc.open_stream(self._body)
        except pa.ArrowInvalid as e:
            raise Interrupted(f"the stream broke off: {e}", "unavailable") from e
        numbers = self._stream.schema.metadata or {}
        self.topic_id = int(numbers[b"topic_id"])
        self.to_seq = int(numbers[b"to_seq"])

    def batches(self) -> Iterator[pa.RecordBatch]:
        try:
            yield from self._stream
        except (pa.ArrowInvalid, *BROKEN) as e:
            raise Interrupted(f"the stream broke off: {e}", "unavailable") from e
        # Arrow accepts the end of the input as the end of the stream.
        if self._body.tail != END_OF_STREAM or self._body.read(1):
            raise Interrupted("the stream ended without its marker", "unavailable")
        self.whole = True


class _Body:
    """The body of an answer as a file that remembers its last bytes."""

    closed = False

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self._response = response
        self.tail = b""

    def read(self, size: int = -1) -> bytes:
        found = self._response.read(None if size < 0 else size)
        self.tail = found[-8:] if len(found) >= 8 else (self.tail + found)[-8:]
        return found

    def readable(self) -> bool:
        return True
