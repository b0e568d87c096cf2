"""Typed columns: every value beside Python's `json` and an oracle written from the rules."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import topics_engine as te
from support.gate import sized
from topics_engine.client.inference import infer

pa = pytest.importorskip("pyarrow")

EXAMPLES = sized(40, 100, 20_000)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
PATHS: dict[str, list[str | int]] = {
    "a": ["a"],
    "b.c": ["b", "c"],
    "d[1]": ["d", 1],
    '["a.b"].é': ["a.b", "é"],
    "$": [],
}
UNITS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
INTS = {f"{sign}int{bits}": (sign, bits) for sign in ("", "u") for bits in (8, 16, 32, 64)}
KINDS = [
    "bool",
    *INTS,
    "float",
    "double",
    "string",
    "date",
    *(f"timestamp[{unit}{zone}]" for unit in UNITS for zone in ("", ", UTC")),
    "decimal(5, 2)",
    "decimal(38, 10)",
]
SCHEMA = {f"{kind} {path}": {"type": kind, "path": path} for kind in KINDS for path in PATHS}


class Number(str):
    """A number as it is written."""

    __slots__ = ()


class Members(list[tuple[str, Any]]):
    """The members of an object with all duplicates."""


FLOAT_LIMIT = 2**128 - 2**103
"""What rounds to an infinite float of 32 bits."""
MISFIT = object()
MISSING = object()
NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?", re.ASCII)
TIME = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)(?:[Tt ](\d\d):(\d\d)(?::(\d\d)(?:\.(\d+))?)?"
    r"(?:([Zz])|([+-])(\d\d)(?::?(\d\d))?)?)?",
    re.ASCII,
)


def find(value: Any, path: list[str | int]) -> Any:
    """The value at a path."""
    for step in path:
        if isinstance(step, str) and isinstance(value, Members):
            value = dict(value).get(step, MISSING)
        elif isinstance(step, int) and type(value) is list and step < len(value):
            value = value[step]
        else:
            return MISSING
    return value


def number_of(value: Any) -> Decimal | None:
    if isinstance(value, Number) or (type(value) is str and NUMBER.fullmatch(value)):
        return Context(prec=2000).create_decimal(value)
    return None


def as_integer(value: Any, least: int, most: int) -> Any:
    found = number_of(value)
    if found is None or found != found.to_integral_value(context=Context(prec=2000)):
        return MISFIT
    return int(found) if least <= found <= most else MISFIT


def as_float(value: Any, form: str) -> Any:
    found = number_of(value)
    if found is None:
        return MISFIT
    double = float(str(value))
    if abs(double) == float("inf"):
        return MISFIT
    exact = Fraction(found)
    if form == "d":
        return double
    if abs(exact) >= FLOAT_LIMIT:
        return MISFIT
    (bits,) = struct.unpack("I", struct.pack("f", double))
    near = [struct.unpack("f", struct.pack("I", bits + d))[0] for d in (-1, 0, 1) if bits + d >= 0]
    finite = [(f, at) for at, f in enumerate(near) if f == f and abs(f) != float("inf")]
    return min(finite, key=lambda n: (abs(Fraction(n[0]) - exact), n[1] != 1))[0]


def as_decimal(value: Any, precision: int, scale: int) -> Any:
    found = number_of(value)
    if found is None:
        return MISFIT
    scaled = found.scaleb(scale, context=Context(prec=2000, Emax=10**6, Emin=-(10**6)))
    whole = as_integer(Number(str(scaled)), -(10**precision) + 1, 10**precision - 1)
    return whole if whole is MISFIT else Decimal(whole).scaleb(-scale)


def as_time(value: Any, unit: int, zoned: bool) -> Any:
    least, most = -(1 << 63), (1 << 63) - 1
    if isinstance(value, Number):
        return as_integer(value, least, most)
    found = TIME.fullmatch(value) if type(value) is str else None
    if found is None:
        return MISFIT
    year, month, day, hour, minute, second, digits, z, sign, h, m = found.groups()
    if (z or sign) and not zoned:
        return MISFIT
    if int(h or 0) > 23 or int(m or 0) > 59:
        return MISFIT
    parts = [int(part or 0) for part in (year, month, day, hour, minute, second)]
    try:
        whole = datetime(*parts, tzinfo=UTC) - EPOCH  # type: ignore[misc, arg-type]
    except ValueError:
        return MISFIT
    east = int(h or 0) * 3600 + int(m or 0) * 60
    seconds = whole // timedelta(seconds=1) - (east if sign == "+" else -east)
    units = seconds * unit + int(((digits or "") + "0" * 9)[:9]) * unit // 10**9
    return units if least <= units <= most else MISFIT


def as_date(value: Any) -> Any:
    if type(value) is not str or not re.fullmatch(r"\d{4}-\d\d-\d\d", value, re.ASCII):
        return MISFIT
    try:
        return date.fromisoformat(value)
    except ValueError:
        return MISFIT


def oracle(kind: str, value: Any, render: Any) -> Any:
    """The value of a column, or `MISFIT`."""
    if value is None or value is MISSING:
        return None
    if kind == "bool":
        return value if isinstance(value, bool) else MISFIT
    if kind == "string":
        if type(value) is not str:
            return render(value)
        return value if not re.search("[\ud800-\udfff]", value) else MISFIT
    if isinstance(value, bool):
        return MISFIT
    if kind in INTS:
        sign, bits = INTS[kind]
        low, high = (0, 2**bits) if sign else (-(2 ** (bits - 1)), 2 ** (bits - 1))
        return as_integer(value, low, high - 1)
    if kind in ("float", "double"):
        return as_float(value, kind[0])
    if kind == "date":
        return as_date(value)
    if kind.startswith("decimal"):
        precision, scale = map(int, kind[8:-1].split(", "))
        return as_decimal(value, precision, scale)
    unit, _, zone = kind[10:-1].partition(", ")
    return as_time(value, UNITS[unit], bool(zone))


class Writer:
    """Writes values as JSON, with all duplicates of members."""

    def __init__(self, space: str, ascii_only: bool) -> None:
        self.space, self.ascii_only = space, ascii_only

    def __call__(self, value: Any) -> str:
        if isinstance(value, Number):
            return str(value)
        if isinstance(value, Members):
            members = (f"{self.text(k)}:{self.space}{self(v)}" for k, v in value)
            return "{" + f",{self.space}".join(members) + "}"
        if isinstance(value, list):
            return "[" + f",{self.space}".join(map(self, value)) + "]"
        return self.text(value)

    def text(self, value: Any) -> str:
        found = json.dumps(value, ensure_ascii=self.ascii_only)
        # Unpaired surrogates exist as escapes only.
        return re.sub("[\ud800-\udfff]", lambda m: f"\\u{ord(m[0]):04x}", found)


numbers = st.one_of(
    st.from_regex(NUMBER, fullmatch=True).filter(lambda n: not re.search(r"[eE].?\d{4}", n)),
    st.integers(-(2**65), 2**65).map(str),
    st.sampled_from([2**n + d for n in (7, 8, 15, 16, 31, 32, 63, 64) for d in (-1, 0, 1)]).map(
        str
    ),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.floats(allow_nan=False, allow_infinity=False, width=32).map(repr),
    st.sampled_from(["-0", "0.0", "1e5", "12.50", "1e400", "-1E-400", "3.4028236e38", "999.99"]),
).map(Number)
times = st.one_of(
    st.datetimes(timezones=st.sampled_from([None, UTC])).map(lambda t: t.isoformat()),
    st.dates().map(str),
    st.from_regex(
        r"(19|20)\d\d-(0[1-9]|1[0-2])-([0-2]\d|3[01])[T ]([01]\d|2[0-4]):[0-6]\d"
        r"(:[0-6]\d(\.\d{1,11})?)?"
        r"(Z|[+-]\d\d(:?\d\d)?)?",
        fullmatch=True,
    ),
)
texts = st.one_of(
    st.text(max_size=8), numbers.map(str), times, st.sampled_from(["\ud800", "1 ", 'a"\\/'])
)
leaves = st.one_of(st.none(), st.booleans(), numbers, texts, times)
keys = st.sampled_from(["a", "b", "c", "d", "a.b", "é", ""])


def members(inner: Any) -> Any:
    return st.lists(st.tuples(keys, inner), max_size=4).map(Members)


values = st.recursive(
    leaves, lambda inner: st.one_of(members(inner), st.lists(inner, max_size=3)), max_leaves=8
)
records = st.one_of(members(values), values)
writers = st.builds(Writer, st.sampled_from(["", " ", "\n\t"]), st.booleans())


@pytest.fixture(scope="module")
def memory() -> Iterator[te.Database]:
    with te.open(":memory:") as db:
        yield db


def appended(db: te.Database, rows: list[str]) -> te.Read:
    """A read of these records, which are stored as they are."""
    first = db.topic("t").append_arrow(pa.table({"data": rows})).first_seq
    return db.topic("t").read(after=first - 1)


def column(table: Any, name: str) -> list[Any]:
    """The values of a column; times as integers."""
    found = table[name]
    return (found.cast("int64") if pa.types.is_timestamp(found.type) else found).to_pylist()


@settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))
@given(st.lists(records, min_size=1, max_size=6), writers)
def test_every_value_is_that_of_the_oracle(
    memory: te.Database, rows: list[Any], write: Writer
) -> None:
    texts = [write(row) for row in rows]
    # What Python's parser makes of the text is what counts, not what was written.
    parsed = [
        json.loads(text, parse_int=Number, parse_float=Number, object_pairs_hook=Members)
        for text in texts
    ]
    read = appended(memory, texts)
    table = read.to_arrow({**SCHEMA, "_raw": "string", "_misfits": "string"})
    table.validate(full=True)
    wanted_misfits: list[list[str]] = [[] for _ in rows]
    for name, asked in SCHEMA.items():
        wanted = []
        for row, value in enumerate(parsed):
            one = oracle(asked["type"], find(value, PATHS[asked["path"]]), write)
            if one is MISFIT:
                wanted_misfits[row].append(name)
            wanted.append(None if one is MISFIT else one)
        assert column(table, name) == wanted, (name, texts)
    found = [json.loads(text) if text else [] for text in table["_misfits"].to_pylist()]
    assert found == wanted_misfits
    raw = [text if missed else None for text, missed in zip(texts, wanted_misfits, strict=True)]
    assert table["_raw"].to_pylist() == raw
    counts = {name: sum(name in row for row in wanted_misfits) for name in SCHEMA}
    assert read.misfits == {name: n for name, n in counts.items() if n}


@settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))
@given(st.lists(records, min_size=1, max_size=6), writers)
def test_everything_fits_the_schema_that_is_proposed(
    memory: te.Database, rows: list[Any], write: Writer
) -> None:
    texts = [re.sub(r"\\ud[89a-f]..", "?", write(row)) for row in rows]
    read = appended(memory, texts)
    schema = infer(json.loads(text) for text in texts)
    if schema:
        read.to_arrow(schema)
        assert read.misfits == {}, (schema, texts)


def test_a_proposed_schema(memory: te.Database) -> None:
    t = memory.topic("proposed")
    rows: list[Any] = [
        {"id": 1, "at": "2026-01-02T03:04:05Z", "day": "2026-01-02", "tag": "x", "p": 1},
        {"id": 2**63, "at": "2026-01-02 03:04+01:00", "n": {"a.b": True, "l": [1]}, "p": 2.5},
        {"id": None, "e": {}, "mixed": 1, "naive": "2026-01-02T03:04:05.123456"},
        {"mixed": "x", "n": {"deep": {"x": "y"}}, "tag_field": 1},
    ]
    t.append(rows)
    assert t.infer_schema() == {
        "id": "uint64",
        "at": "timestamp[us, UTC]",
        "day": "date",
        "tag_field_": {"type": "string", "path": "tag"},
        "p": "double",
        'n["a.b"]': "bool",
        "n.l": "string",
        "n.deep.x": "string",
        "mixed": "string",
        "naive": "timestamp[us]",
        "tag_field": "int64",
    }
    assert t.infer_schema(1) == {
        "mixed": "string",
        "n.deep.x": "string",
        "tag_field": "int64",
    }
    read = t.read()
    table = read.to_arrow(t.infer_schema())
    assert read.misfits == {}
    assert table["tag_field_"].to_pylist() == ["x", None, None, None]
    assert infer([1, 2.5]) == {"$": "double"}
    assert infer([None, [], {}]) == {"$": "string"}
    assert infer([{"a": 10**37}, {"b": -(2**70)}, {"c": 10**40}]) == {
        "a": "decimal(38, 0)",
        "b": "decimal(38, 0)",
        "c": "string",
    }


def test_gaps_and_binary_records(memory: te.Database) -> None:
    t = memory.topic("gaps", cap_records=3)
    for i in range(5):
        t.append({"i": i})
    table = t.read(after=0).to_arrow({"i": "int64", "_misfits": "string"})
    rows = table.select(["seq", "i", "gap_to", "_misfits"]).to_pylist()
    assert rows[0] == {"seq": 1, "i": None, "gap_to": 2, "_misfits": None}
    assert [row["i"] for row in rows[1:]] == [2, 3, 4]
    read = t.read(after=0, gaps="skip")
    assert read.to_arrow({"i": "int64"})["i"].to_pylist() == [2, 3, 4]
    raw = memory.topic("binary")
    raw.append_batch([b'{"i": 7}', b"\xff", b'{"i": "x"}', b"{"])
    read = raw.read()
    table = read.to_arrow({"i": "int64", "_raw": "binary"})
    assert table["i"].to_pylist() == [7, None, None, None]
    assert table["_raw"].to_pylist() == [None, b"\xff", b'{"i": "x"}', b"{"]
    assert read.misfits == {"i": 3}
    with pytest.raises(te.InvalidRequest, match=r"record 2 is binary.*`_raw` as binary"):
        raw.read().to_arrow({"i": "int64", "_raw": "string"})
