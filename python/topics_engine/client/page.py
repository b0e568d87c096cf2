"""Answers with records, and bodies of records."""

from __future__ import annotations

import json
from binascii import b2a_base64
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .. import _core
from .values import lease_number

if TYPE_CHECKING:
    from .._core import _GapRow, _NewRow, _Row


class Page:
    """The records of a read, with payloads as they were stored."""

    __slots__ = ("_fields", "_rows", "more", "next_from_seq")

    def __init__(self, body: bytes, member: str = "records", upto: int | None = None) -> None:
        rest, rows, self.more = _core.parse_answer(body, member)
        self._fields: dict[str, Any] = json.loads(rest)
        self._rows: list[_Row] = rows
        self.next_from_seq: int = self._fields.get("next_from_seq", 0)
        if upto is not None and self.next_from_seq > upto:
            self._rows = [row for row in rows if row[0] <= upto]
            self.next_from_seq = upto

    def __getattr__(self, name: str) -> Any:
        try:
            return self._fields[name]
        except KeyError:
            raise AttributeError(name) from None

    @property
    def topic_id(self) -> int:
        return int(self._fields["topic_id"])

    @property
    def head_seq(self) -> int:
        return int(self._fields["head_seq"])

    @property
    def earliest_seq(self) -> int:
        return int(self._fields["earliest_seq"])

    @property
    def caught_up(self) -> bool:
        return bool(self._fields["caught_up"])

    @property
    def lag(self) -> int:
        return int(self._fields["lag"])

    @property
    def lag_ms(self) -> int:
        return int(self._fields["lag_ms"])

    @property
    def records_scanned(self) -> int:
        return int(self._fields["performance"]["records_scanned"])

    @property
    def tombstone(self) -> _GapRow | None:
        lost = self._fields.get("tombstone")
        return None if lost is None else gap_row_of(lost)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int, /) -> _Row:
        return self._rows[index]

    def rows(self) -> list[_Row]:
        return self._rows

    def payloads(self) -> list[bytes]:
        return [row[5] for row in self._rows]


def gap_row_of(lost: dict[str, Any]) -> _GapRow:
    """The tuple of a tombstone."""
    return (
        lost["gap_from"],
        lost["gap_to"],
        lost["reason"],
        lost.get("missed_estimate", 0),
        lost["earliest_seq"],
        lost["head_seq"],
    )


def jobs_of(body: bytes, member: str) -> tuple[list[tuple[int, int, int, int]], int, Page]:
    """The jobs of a claim, without their leases."""
    page = Page(body, member)
    leases = [json.loads(more) for more in page.more]
    found = [
        (row[0], lease_number(lease["lease_id"]), lease["deadline"], lease["deliveries"])
        for row, lease in zip(page.rows(), leases, strict=True)
    ]
    lease_ms = leases[0]["lease_ms"] if leases else 0
    return found, lease_ms, page


def body_of_rows(rows: Sequence[_NewRow], fields: bytes = b"") -> bytes:
    """The body of a write; `fields` are its other members, each followed by a comma."""
    return b'{%b"records":[%b]}' % (fields, b",".join(map(_record, rows)))


def _record(row: _NewRow) -> bytes:
    data, binary, tag, node, meta, ttl_ms, *of_job = row
    packed = [b'{"data_b64":"', b2a_base64(data, newline=False), b'"'] if binary else None
    parts = packed or [b'{"data":', data]
    named: list[tuple[str, Any]] = [("tag", tag), ("node", node), ("ttl_ms", ttl_ms or None)]
    if of_job:
        lane, group, delay_ms, deliver_at = of_job
        named += [("lane", lane), ("group", group)]
        named += [("delay_ms", delay_ms or None), ("deliver_at", deliver_at or None)]
    for name, value in named:
        if value is not None:
            parts.append(f',"{name}":{json.dumps(value)}'.encode())
    if meta is not None:
        parts += [b',"meta":', meta]
    parts.append(b"}")
    return b"".join(parts)
