"""A range of a server's topic as an Arrow stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .caller import ARROW, Caller, encoded, given, of_topic
from .leasing import matcher

if TYPE_CHECKING:
    from typing_extensions import CapsuleType


class Scan:
    """An Arrow stream that was fetched whole."""

    def __init__(self, reader: Any) -> None:
        self._reader = reader
        told = _told(reader.schema)
        self.topic_id = told["topic_id"]
        self.to_seq = told["to_seq"]

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> CapsuleType:
        found: CapsuleType = self._reader.__arrow_c_stream__(requested_schema)
        return found

    def __arrow_c_schema__(self) -> CapsuleType:
        found: CapsuleType = self._reader.schema.__arrow_c_schema__()
        return found


def scan(
    caller: Caller,
    topic: str,
    *,
    after: int | None = None,
    upto: int | None = None,
    skip_nodes: Sequence[str] | None = None,
    match: str | None = None,
    topic_id: int | None = None,
    limit: int | None = None,
) -> Scan:
    """The records after a seq, to the head of when it begins, or to `upto`; about the first `limit`
    of them.
    """
    body = given(
        from_seq="earliest" if after is None else after,
        node=list(skip_nodes) if skip_nodes else None,
        match=matcher(match),
        topic_id=topic_id,
    )
    if limit is not None:
        return Scan(_pages(caller, topic, body, upto, limit))
    return scan_range(caller, topic, encoded(body | given(to_seq=upto)) or b"")


def scan_range(caller: Caller, topic: str, request: bytes) -> Scan:
    """What `POST /v0/topics/:t/scan` answers."""
    # A range that breaks off has no end marker: there was no whole answer, and it was asked again.
    return Scan(_opened(caller.call("POST", of_topic(topic, "scan"), request, accept=ARROW)))


def _pages(caller: Caller, topic: str, body: dict[str, Any], upto: int | None, limit: int) -> Any:
    """As many pages as have so many rows."""
    import pyarrow

    tables: list[Any] = []
    left, end = limit, upto
    while not tables or left > 0:
        request = encoded(body | {"limit": left})
        raw = caller.call("POST", of_topic(topic, "diff"), request, accept=ARROW)
        tables.append(_opened(raw).read_all())
        told = _told(tables[-1].schema)
        end = told["head_seq"] if end is None else end
        left -= len(tables[-1])
        if told["to_seq"] >= end or told["to_seq"] == body["from_seq"]:
            break
        body |= {"from_seq": told["to_seq"], "topic_id": told["topic_id"]}
    schema = tables[0].schema
    found = pyarrow.Table.from_batches([b for t in tables for b in t.to_batches()], schema)
    return found.filter(pyarrow.compute.less_equal(found["seq"], end)).to_reader()


def _opened(raw: bytes) -> Any:
    import pyarrow

    return pyarrow.ipc.open_stream(raw)


def _told(schema: Any) -> dict[str, int]:
    """What is fixed when a stream begins."""
    return {name.decode(): int(n) for name, n in schema.metadata.items()}
