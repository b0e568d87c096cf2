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

    def __init__(self, reader: Any, topic_id: int, to_seq: int) -> None:
        self._reader = reader
        self.topic_id = topic_id
        self.to_seq = to_seq

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
) -> Scan:
    """The records after a seq, to the head of when it begins, or to `upto`."""
    import pyarrow

    body = given(
        from_seq="earliest" if after is None else after,
        to_seq=upto,
        node=list(skip_nodes) if skip_nodes else None,
        match=matcher(match),
        topic_id=topic_id,
    )
    raw = caller.call("POST", of_topic(topic, "scan"), encoded(body), accept=ARROW)
    # A range that breaks off has no end marker: there was no whole answer, and it was asked again.
    reader = pyarrow.ipc.open_stream(raw)
    told = {name.decode(): int(n) for name, n in reader.schema.metadata.items()}
    return Scan(reader, told["topic_id"], told["to_seq"])
