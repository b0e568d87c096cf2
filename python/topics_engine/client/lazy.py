"""A topic as a lazy frame of Polars: a query reads the records and the columns that it needs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

from ..extras import extra
from .pushdown import Condition, Operator, scanned
from .schema import Schema, fields

if TYPE_CHECKING:
    from .backend import Backend

PER_MS: Final = {"Milliseconds": 1, "Microseconds": 1000, "Nanoseconds": 1_000_000}
OPERATORS: Final = {"Lt": "<", "LtEq": "<=", "Eq": "==", "GtEq": ">=", "Gt": ">"}
MIRRORED: Final = {"Lt": "Gt", "LtEq": "GtEq", "Eq": "Eq", "GtEq": "LtEq", "Gt": "Lt"}
INTEGERS: Final = frozenset(f"{sign}{bits}" for sign in ("Int", "UInt") for bits in (8, 16, 32, 64))


def lazy(backend: Backend, topic: str, schema: Schema | None) -> Any:
    """The lazy frame; see `Topic.lazy`."""
    with extra("polars", "lazy"):
        import polars
        from polars.io.plugins import register_io_source

    typed = {} if schema is None else fields("schema", schema)
    shape: dict[str, Any] = {}
    if typed:
        none = {"from_seq": "earliest", "to_seq": 0, "fields": typed}
        first = polars.DataFrame(backend.scan(topic, none))
    else:
        # The type of `data` is that of the first record; every later scan keeps it.
        first = polars.DataFrame(backend.scan(topic, {"from_seq": "earliest"}, 1))
        shape["data_type"] = "binary" if first.schema["data"] == polars.Binary else "string"

    def source(
        columns: Sequence[str] | None, predicate: Any, n_rows: int | None, _batch: int | None
    ) -> Iterator[Any]:
        needed = set(first.columns if columns is None else columns)
        found: list[Condition] = []
        if predicate is not None:
            needed.update(predicate.meta.root_names())
            # A limit counts the rows before the predicate, so that none may be left out.
            if n_rows is None:
                found = conditions(predicate)
        stream = scanned(backend, topic, needed, typed, found, limit=n_rows, **shape)
        for frame in _frames(stream):
            if n_rows is not None:
                frame = frame.head(n_rows)
                n_rows -= frame.height
            if predicate is not None:
                frame = frame.filter(predicate)
            yield frame.select(first.columns if columns is None else columns)
            if n_rows == 0:
                return

    return register_io_source(source, schema=first.schema)


def _frames(stream: Any) -> Iterator[Any]:
    """The batches of a stream, one at a time where pyarrow is there to take them."""
    import polars

    try:
        import pyarrow
    except ModuleNotFoundError:
        yield polars.DataFrame(stream)
        return
    reader = pyarrow.RecordBatchReader.from_stream(stream)
    yield polars.DataFrame(reader.schema.empty_table())
    for batch in reader:
        yield polars.DataFrame(batch)


def conditions(predicate: Any) -> list[Condition]:
    """Conditions that all rows meet for which the predicate holds."""
    parts = _conjuncts(json.loads(predicate.meta.serialize(format="json")))
    return [found for part in parts if (found := _condition(part)) is not None]


def _conjuncts(node: Any) -> Iterator[Any]:
    """The parts of an `and`."""
    match node:
        case {"BinaryExpr": {"left": left, "op": "And" | "LogicalAnd", "right": right}}:
            yield from _conjuncts(left)
            yield from _conjuncts(right)
        case {
            "Function": {
                "input": [value, low, high],
                "function": {"Boolean": {"IsBetween": {"closed": closed}}},
            }
        }:
            least = "GtEq" if closed in ("Both", "Left") else "Gt"
            most = "LtEq" if closed in ("Both", "Right") else "Lt"
            yield {"BinaryExpr": {"left": value, "op": least, "right": low}}
            yield {"BinaryExpr": {"left": value, "op": most, "right": high}}
        case _:
            yield node


def _condition(node: Any) -> Condition | None:
    """The condition of a node; `None` of one that no scan evaluates."""
    match node:
        case {"BinaryExpr": {"left": {"Column": str(name)}, "op": str(op), "right": literal}}:
            return _comparison(name, op, literal)
        case {"BinaryExpr": {"left": literal, "op": str(op), "right": {"Column": str(name)}}}:
            return _comparison(name, MIRRORED.get(op, op), literal)
        case {
            "Function": {
                "input": [{"Column": "tag"}, {"Literal": {"Scalar": {"String": str(prefix)}}}],
                "function": {"StringExpr": "StartsWith"},
            }
        }:
            return ("tag", "prefix", prefix)
    return None


def _comparison(name: str, op: str, literal: Any) -> Condition | None:
    if op not in OPERATORS:
        return None
    operator = cast("Operator", OPERATORS[op])
    match name, literal:
        case "seq", {"Literal": {"Dyn": {"Int": int(value)}}}:
            return (name, operator, value)
        case "seq", {"Literal": {"Scalar": dict(scalar)}} if scalar.keys() < INTEGERS:
            (value,) = scalar.values()
            return (name, operator, value)
        case "ts", {"Literal": {"Scalar": {"Datetime": [int(ticks), str(unit), {"inner": "UTC"}]}}}:
            return (name, operator, (ticks, PER_MS[unit]))
        case "tag", {"Literal": {"Scalar": {"String": str(value)}}}:
            return (name, operator, value)
    return None
