"""Requests and answers in the fields of the HTTP interface, which a directory uses too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .access import ScanRequest
from .planning import Head, Range


class Splits:
    """Splits ranges, for classes that can send a split request."""

    def split(self, whole: Range, records: int) -> Sequence[int]:
        return _ends(whole, self._split(whole.topic, _split_body(whole, {"max_records": records})))

    def fill(self, whole: Range, size: int) -> int:
        return _ends(
            whole, self._split(whole.topic, _split_body(whole, {"max_bytes": max(1, size)}))
        )[0]

    def _split(self, topic: str, body: dict[str, int]) -> dict[str, Any]:
        """The answer of `POST /v0/topics/:t/split`."""
        raise NotImplementedError


def _split_body(whole: Range, size: dict[str, int]) -> dict[str, int]:
    return {"from_seq": whole.lo - 1, "to_seq": whole.hi - 1, **size}


def _ends(whole: Range, answer: dict[str, Any]) -> list[int]:
    """The ends of the parts of a range, from the answer to a split."""
    ends = [int(part["to_seq"]) + 1 for part in answer["splits"]]
    return [*(end for end in ends if whole.lo < end < whole.hi), whole.hi]


def scan_body(request: ScanRequest) -> dict[str, Any]:
    body: dict[str, Any] = {
        "from_seq": request.after,
        "to_seq": request.upto,
        "topic_id": request.topic_id,
        "columns": list(request.columns),
        "data_type": "binary" if request.binary else "string",
    }
    if request.fields:
        body["fields"] = dict(request.fields)
    if request.strong:
        body["consistency"] = "strong"
    if request.selection.match is not None:
        body["match"] = list(request.selection.match)
    if request.selection.nodes:
        body["nodes"] = list(request.selection.nodes)
    return body


def head_of(state: dict[str, Any]) -> Head:
    return Head(
        topic_id=state["topic_id"],
        earliest=max(1, state["earliest_seq"]),
        end=state["head_seq"] + 1,
        next=state["next_seq"],
        count=state["count"],
        bytes=state["bytes"],
    )
