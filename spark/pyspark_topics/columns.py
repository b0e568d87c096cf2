"""The columns of a topic, in Spark's types and in Arrow's."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    DataType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from .errors import InvalidOption

if TYPE_CHECKING:
    from .options import ReadOptions
    from .typed import TypedField

_META = pa.map_(pa.string(), pa.field("value", pa.string()))

# Spark accepts exactly these types: no large strings, no other unit or zone. A map with other names
# of its children passes Spark's check and fails in the JVM.
_ARROW = {
    "topic": pa.string(),
    "seq": pa.int64(),
    "ts": pa.timestamp("us", tz="UTC"),
    "node": pa.string(),
    "tag": pa.string(),
    "meta": _META,
    "data": pa.string(),
}
_SPARK: dict[str, DataType] = {
    "topic": StringType(),
    "seq": LongType(),
    "ts": TimestampType(),
    "node": StringType(),
    "tag": StringType(),
    "meta": MapType(StringType(), StringType()),
    "data": StringType(),
}
SINK = ("topic", "node", "tag", "meta", "data")
"""The columns that a sink accepts."""


def spark_schema(options: ReadOptions) -> StructType:
    """The schema of a source without a user-defined one. Typed columns replace `data`."""
    omitted = {"data" if options.fields else "", "" if options.include_meta else "meta"}
    columns = [
        StructField(name, BinaryType() if options.binary and name == "data" else kind)
        for name, kind in _SPARK.items()
        if name not in omitted
    ]
    return StructType([*columns, *(StructField(one.name, one.spark) for one in options.fields)])


def arrow_schema(wanted: StructType, typed: Sequence[TypedField] = ()) -> pa.Schema:
    """The same columns for Arrow; refuses a schema that is not a subset of them."""
    fields = []
    known = {one.name: one for one in typed}
    if taken := next((name for name in known if name in _SPARK), None):
        raise InvalidOption(
            f'"fields" names the column {taken!r}, which every topic has; the value of that name '
            f'in the records is `["{taken}"]`'
        )
    for column in wanted.fields:
        if column.name in known:
            one = known[column.name]
            if column.dataType != one.spark:
                raise InvalidOption(
                    f'column {one.name!r} is {one.spark.simpleString()} in "fields", '
                    f"not {column.dataType.simpleString()}"
                )
            fields.append(pa.field(one.name, one.arrow, column.nullable))
            continue
        kind = _SPARK.get(column.name)
        if kind is None:
            raise InvalidOption(
                f"there is no column {column.name!r}: there are {', '.join([*_SPARK, *known])}; "
                'the option "fields" makes columns of values in the records'
            )
        if column.name == "data" and isinstance(column.dataType, BinaryType):
            fields.append(pa.field("data", pa.binary(), column.nullable))
            continue
        if column.dataType != kind:
            raise InvalidOption(
                f"column {column.name!r} is {kind.simpleString()}, "
                f"not {column.dataType.simpleString()}"
            )
        arrow = _ARROW[column.name]
        if isinstance(column.dataType, MapType) and not column.dataType.valueContainsNull:
            arrow = pa.map_(pa.string(), pa.field("value", pa.string(), nullable=False))
        fields.append(pa.field(column.name, arrow, column.nullable))
    return pa.schema(fields)


def is_binary(schema: pa.Schema) -> bool:
    """Whether `data` is requested as bytes."""
    at = schema.get_field_index("data")
    return at >= 0 and bool(pa.types.is_binary(schema.field(at).type))


def sink_types(schema: StructType, topic: str | None) -> None:
    """Refuses a schema that a sink cannot write, before any row is written."""
    names = schema.fieldNames()
    if unknown := sorted(set(names) - set(SINK)):
        raise InvalidOption(
            f"a sink has no column {unknown[0]!r}: select {', '.join(SINK)}, "
            "or pack the rest into data with to_json(struct(…))"
        )
    if "data" not in names:
        raise InvalidOption("a sink needs the column data")
    if topic is None and "topic" not in names:
        raise InvalidOption('a sink needs the option "topic" or the column topic')
    for column in schema.fields:
        allowed: Iterable[type[DataType]] = (StringType,)
        if column.name == "data":
            allowed = (StringType, BinaryType)
        elif column.name == "meta":
            allowed = (MapType,)
        kind = column.dataType
        fine = isinstance(kind, tuple(allowed)) and (
            not isinstance(kind, MapType)
            or (isinstance(kind.keyType, StringType) and isinstance(kind.valueType, StringType))
        )
        if not fine:
            raise InvalidOption(f"column {column.name!r} cannot be {kind.simpleString()}")
