"""A range of a server's topic as an Arrow stream."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..client.request import encode_json
from ..extras import extra
from .caller import Caller
from .transport import Answer

if TYPE_CHECKING:
    from typing_extensions import CapsuleType


class Scan:
    """An Arrow stream that was fetched whole."""

    def __init__(self, reader: Any) -> None:
        self._reader = reader
        told = numbers(reader.schema)
        self.topic_id = told["topic_id"]
        self.to_seq = told["to_seq"]

    def check(self) -> None:
        """Raises nothing: what can fail was done before."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> CapsuleType:
        found: CapsuleType = self._reader.__arrow_c_stream__(requested_schema)
        return found

    def __arrow_c_schema__(self) -> CapsuleType:
        found: CapsuleType = self._reader.schema.__arrow_c_schema__()
        return found


def scan_range(caller: Caller, topic: str, request: bytes) -> Scan:
    """The answer of `POST /v0/topics/:t/scan`."""
    return Scan(whole(caller, topic, "scan", json.loads(request)))


def scan_first(caller: Caller, topic: str, request: Mapping[str, Any], limit: int) -> Scan:
    """The first `limit` rows of a scan; fetches pages until it has them."""
    import pyarrow

    body = dict(request)
    tables: list[Any] = []
    while not tables or limit > 0:
        tables.append(whole(caller, topic, "diff", body | {"limit": limit}).read_all())
        told = numbers(tables[-1].schema)
        body.setdefault("to_seq", told["head_seq"])
        limit -= len(tables[-1])
        if told["to_seq"] in (body["from_seq"], body["to_seq"]):
            break
        body |= pinned(tables[-1].schema) | {"from_seq": told["to_seq"]}
    return Scan(pyarrow.concat_tables(tables).to_reader())


END = b"\xff\xff\xff\xff\x00\x00\x00\x00"
"""Arrow's end-of-stream marker."""


class Range:
    """The batches received so far, and the request for the rest."""

    def __init__(self, asked: dict[str, Any]) -> None:
        self.schema: Any = None
        self.batches: list[Any] = []
        self.whole = False
        self._asked = dict(asked)
        columns = asked.get("columns")
        if columns and isinstance(columns, list):
            self._asked["columns"] = [*columns, "seq", "gap_to"]

    @property
    def request(self) -> bytes:
        return encode_json(self._asked)

    def take(self, answer: Answer) -> bool:
        """Keeps the batches of a response; returns whether it had any, or ended the stream."""
        import pyarrow

        before = len(self.batches)
        with contextlib.suppress(pyarrow.ArrowInvalid, OSError):
            reader = pyarrow.ipc.open_stream(answer.body)
            if self.schema is None:
                self.schema = reader.schema
                self._asked |= pinned(reader.schema)
                self._asked["to_seq"] = numbers(reader.schema)["to_seq"]
            for batch in reader:
                self.batches.append(batch)
        # pyarrow treats the end of the input like the end of the stream: check the marker.
        self.whole = answer.whole and answer.body.endswith(END)
        came = len(self.batches) > before
        if came:
            self._asked["from_seq"] = _cursor(self.batches[-1])
        return came or self.whole

    def shown(self, asked: Mapping[str, Any]) -> Any:
        """All batches, with the requested columns."""
        import pyarrow

        found = pyarrow.Table.from_batches(self.batches, self.schema)
        columns = asked.get("columns")
        if isinstance(columns, list):
            wanted = {*columns, *(asked.get("fields") or ())}
            found = found.select([name for name in found.column_names if name in wanted])
        return found.to_reader()


def _cursor(batch: Any) -> int:
    """The cursor behind the last row, which may be a gap."""
    last = batch.slice(len(batch) - 1).to_pylist()[0]
    return int(last["gap_to"] if last["gap_to"] is not None else last["seq"])


def numbers(schema: Any) -> dict[str, int]:
    """The metadata of a stream."""
    return {name.decode(): int(n) for name, n in schema.metadata.items()}


def pinned(schema: Any) -> dict[str, Any]:
    """The request fields that keep a continued stream consistent with the first one."""
    import pyarrow

    found: dict[str, Any] = {"topic_id": numbers(schema)["topic_id"]}
    if "data" in schema.names:
        binary = pyarrow.types.is_binary(schema.field("data").type)
        found["data_type"] = "binary" if binary else "string"
    return found


def whole(caller: Caller, topic: str, verb: str, asked: dict[str, Any]) -> Any:
    """Fetches all that `verb` returns, continuing broken streams."""
    with extra("arrow", "scan of a server"):
        import pyarrow  # noqa: F401
    found = Range(asked)
    while not found.whole:
        caller.partly(verb, topic, found.request, found.take)
    return found.shown(asked)
