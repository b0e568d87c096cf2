"""Typed columns: the option `fields`, in the words of Spark's DDL."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import types as spark

from .errors import InvalidOption

RAW, MISFITS = "_raw", "_misfits"

_TYPES: dict[str, tuple[spark.DataType, pa.DataType]] = {
    "boolean": (spark.BooleanType(), pa.bool_()),
    "tinyint": (spark.ByteType(), pa.int8()),
    "smallint": (spark.ShortType(), pa.int16()),
    "int": (spark.IntegerType(), pa.int32()),
    "bigint": (spark.LongType(), pa.int64()),
    "float": (spark.FloatType(), pa.float32()),
    "double": (spark.DoubleType(), pa.float64()),
    "string": (spark.StringType(), pa.string()),
    "date": (spark.DateType(), pa.date32()),
    "timestamp": (spark.TimestampType(), pa.timestamp("us", tz="UTC")),
    "timestamp_ntz": (spark.TimestampNTZType(), pa.timestamp("us")),
    "binary": (spark.BinaryType(), pa.binary()),
}
_ALIASES = {
    "bool": "boolean",
    "byte": "tinyint",
    "short": "smallint",
    "integer": "int",
    "long": "bigint",
    "real": "float",
    "timestamp_ltz": "timestamp",
}
_COLUMN = re.compile(r"\s*(?:`((?:[^`]|``)+)`|([^\s`,]+))\s+([A-Za-z_0-9]+)\s*(\([^)]*\))?\s*(,|$)")
_DECIMAL = re.compile(r"\(\s*(\d{1,2})\s*(?:,\s*(\d{1,2})\s*)?\)")


@dataclass(frozen=True, slots=True)
class TypedField:
    """A column whose values are in the JSON of the records; its name is their path."""

    name: str
    spark: spark.DataType
    arrow: pa.DataType

    @property
    def engine(self) -> str:
        """The type in a request."""
        return str(self.arrow)


def typed_fields(text: str) -> tuple[TypedField, ...]:
    """The fields of `user long, price double, `items[0].id` string`."""
    found = tuple(_parsed(text))
    names = [one.name for one in found]
    for name in names:
        if names.count(name) > 1:
            raise InvalidOption(f'"fields" has the column {name!r} twice')
    return found


def _parsed(text: str) -> Iterator[TypedField]:
    at = 0
    while at < len(text) or at == 0:
        column = _COLUMN.match(text, at)
        if column is None:
            raise InvalidOption(
                f'"fields" is like user long, price double, `items[0].id` string, not {text!r}: '
                f"a name and a type are expected at {text[at : at + 40].strip()!r}"
            )
        quoted, plain, kind, arguments, comma = column.groups()
        name = quoted.replace("``", "`") if quoted else plain
        yield TypedField(name, *_types_of(name, kind, arguments))
        at = column.end()
        if not comma:
            return
        if at == len(text):
            raise InvalidOption(f'"fields" {text!r} ends with a comma')


def _types_of(name: str, kind: str, arguments: str | None) -> tuple[spark.DataType, pa.DataType]:
    word = _ALIASES.get(kind.lower(), kind.lower())
    if word in ("decimal", "dec", "numeric"):
        sizes = _DECIMAL.fullmatch(arguments or "(10, 0)")
        precision, scale = (int(sizes[1]), int(sizes[2] or 0)) if sizes else (0, 0)
        if not 1 <= precision <= 38 or scale > precision:
            raise InvalidOption(
                f"column {name!r}: a decimal has a precision of 1 to 38 and a scale of at most "
                f"that, as in decimal(38, 9), not {kind}{arguments or ''}"
            )
        return spark.DecimalType(precision, scale), pa.decimal128(precision, scale)
    if arguments is None and word in _TYPES:
        return _TYPES[word]
    known = [*_TYPES, *_ALIASES, "decimal"]
    near = difflib.get_close_matches(word, known, n=1)
    hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(sorted(known))}"
    raise InvalidOption(f"column {name!r} has the unknown type {kind}{arguments or ''}; {hint}")
