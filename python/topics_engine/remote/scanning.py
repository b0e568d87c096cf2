"""A range of a server's topic as an Arrow stream."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .caller import Caller, given
from .queue import matcher
from .ranges import numbers, pinned, whole

if TYPE_CHECKING:
    from typing_extensions import CapsuleType


class Scan:
    """An Arrow stream that was fetched whole."""

    def __init__(self, reader: Any) -> None:
        self._reader = reader
        told = numbers(reader.schema)
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
    body |= given(to_seq=upto)
    if limit is not None:
        return Scan(_first(caller, topic, body, limit))
    return Scan(whole(caller, topic, "scan", body))


def scan_range(caller: Caller, topic: str, request: bytes) -> Scan:
    """What `POST /v0/topics/:t/scan` answers."""
    return Scan(whole(caller, topic, "scan", json.loads(request)))


def _first(caller: Caller, topic: str, body: dict[str, Any], limit: int) -> Any:
    """As many reads as have so many rows."""
    import pyarrow

    tables: list[Any] = []
    while not tables or limit > 0:
        tables.append(whole(caller, topic, "diff", body | {"limit": limit}).read_all())
        told = numbers(tables[-1].schema)
        body.setdefault("to_seq", told["head_seq"])
        limit -= len(tables[-1])
        if told["to_seq"] in (body["from_seq"], body["to_seq"]):
            break
        body |= pinned(tables[-1].schema) | {"from_seq": told["to_seq"]}
    return pyarrow.concat_tables(tables).to_reader()
