"""The conditions of a query as the range and the filter of a scan.

The engine of the query applies its whole predicate to the rows of the scan again. So a condition
may become a scan that returns more rows than it selects, never fewer. Gaps are rows, too: a row of
a gap that a scan of the whole topic does not have must not meet the condition.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, cast

from .schema import COLUMNS, MISFITS, RAW

if TYPE_CHECKING:
    from .backend import Backend, Stream

Operator: TypeAlias = Literal["<", "<=", "==", ">=", ">", "prefix"]
Condition: TypeAlias = tuple[str, Operator, Any]
"""A column of the topic, an operator, and a literal: of `seq` an int, of `tag` a text, of `ts` the
ticks since 1970 and how many of them are a millisecond.
"""

MAX_SEQ: Final = (1 << 53) - 1


def scanned(
    backend: Backend,
    topic: str,
    columns: Iterable[str],
    typed: Mapping[str, Any],
    conditions: Iterable[Condition] = (),
    *,
    limit: int | None = None,
    **more: Any,
) -> Stream:
    """A scan with these columns, and with the rows of the topic that can meet all conditions."""
    request = {"from_seq": "earliest", **projection(set(columns), typed), **more}
    request |= pushed(conditions)
    if request["from_seq"] != "earliest":
        # A cursor beyond the head would be one of an earlier topic with the same name.
        head = json.loads(backend.state(topic))["head_seq"]
        request["from_seq"] = min(request["from_seq"], head)
    return backend.scan(topic, request, limit)


def projection(needed: set[str], typed: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a scan for these columns; it has at least one column of the topic."""
    if needed & {RAW, MISFITS}:
        # They tell about every typed column.
        needed = needed | set(typed)
    columns = [name for name in COLUMNS if name in needed] or ["seq"]
    fields = {name: kind for name, kind in typed.items() if name in needed}
    return {"columns": columns, "fields": fields} if fields else {"columns": columns}


def pushed(conditions: Iterable[Condition]) -> dict[str, Any]:
    """The fields of a scan that returns every row that meets all conditions."""
    found: dict[str, Any] = {}
    for condition in conditions:
        for name, value in _translated(*condition).items():
            if name in ("to_seq", "ts_to"):
                found[name] = min(found.get(name, value), value)
            elif name in ("from_seq", "ts_from"):
                found[name] = max(found.get(name, value), value)
            else:
                # A scan has one filter of tags.
                found.setdefault(name, value)
    return found


def _translated(column: str, operator: Operator, value: Any) -> dict[str, Any]:
    if column == "seq":
        return _seqs(operator, value)
    if column == "ts":
        return _times(operator, *cast("Sequence[int]", value))
    if operator == "==" and value:
        return {"match": ["tag", "Eq", value]}
    if operator == "prefix" and value and "*" not in value:
        return {"match": ["tag", "Glob", f"{value}*"]}
    return {}


def _seqs(operator: Operator, value: int) -> dict[str, Any]:
    """A range of seqs. It begins one record early: the rest of a gap that began before it then has
    a seq that the condition refuses.
    """
    found = {}
    if operator in (">", ">=", "=="):
        after = value - 1 if operator == ">" else value - 2
        # From the beginning on, older records that are gone would be a gap.
        if after > 0:
            found["from_seq"] = min(after, MAX_SEQ)
    if operator in ("<", "<=", "=="):
        last = value - 1 if operator == "<" else value
        found["to_seq"] = min(max(last, 0), MAX_SEQ)
    return found


def _times(operator: Operator, ticks: int, per_ms: int) -> dict[str, Any]:
    """A range of commit times, which are whole milliseconds. Gaps have none."""
    found = {}
    if operator in (">", ">=", "=="):
        found["ts_from"] = min(max(ticks // per_ms, 0), MAX_SEQ)
    if operator in ("<", "<=", "=="):
        end = -(-ticks // per_ms) if operator == "<" else ticks // per_ms + 1
        found["ts_to"] = min(max(end, 0), MAX_SEQ)
    return found
