"""Python values and Arrow tables as the records that are stored."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ..errors import InvalidRequest
from ..extras import extra
from . import arguments
from .values import NewRecord, Record

if TYPE_CHECKING:
    from .arguments import Duration, Time
    from .backend import NewRow

_plain = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
_ascii = json.JSONEncoder(ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode


def dump(value: Any) -> bytes:
    """Encodes a value as JSON. Lone surrogates, which UTF-8 cannot encode, become escapes."""
    try:
        return _plain(value).encode()
    except UnicodeEncodeError:
        return _ascii(value).encode()


def rows(
    value: Any,
    tag: str | None = None,
    meta: Mapping[str, str] | None = None,
    ttl: Duration = 0,
    lane: int | None = None,
    group: str | None = None,
    delay: Duration = 0,
    deliver_at: Time | None = None,
) -> list[NewRow]:
    """The records of an append: a list is a batch, any other value is one record."""
    items = value if isinstance(value, list) else (value,)
    given = (tag, meta, ttl, lane, group, delay, deliver_at)
    default = NO_OPTIONS
    if given != NONE_GIVEN:
        default = _options(NewRecord(None, tag, None, meta, ttl, lane, group, delay, deliver_at))
    return [_row(index, item, default) for index, item in enumerate(items)]


NONE_GIVEN = (None, None, 0, None, None, 0, None)
NO_OPTIONS: Any = (None, None, None, 0)


def _options(record: NewRecord, where: str = "") -> Any:
    """The options of a record as a row has them; `where` is put before the names of arguments."""
    tag = arguments.optional_text(f"{where}tag", record.tag)
    node = arguments.optional_text(f"{where}origin", record.origin)
    headers = None if record.meta is None else dump(arguments.meta(f"{where}meta", record.meta))
    ttl_ms = arguments.milliseconds(f"{where}ttl", record.ttl)
    plain = (tag, node, headers, ttl_ms)
    delay_ms = arguments.milliseconds(f"{where}delay", record.delay)
    at = arguments.optional_epoch_ms(f"{where}deliver_at", record.deliver_at) or 0
    if record.lane is None and record.group is None and not delay_ms and not at:
        return plain
    lane = None if record.lane is None else arguments.count(f"{where}lane", record.lane, 0, 9)
    group = arguments.optional_text(f"{where}group", record.group)
    return *plain, lane, group, delay_ms, at


def _row(index: int, item: Any, options: Any) -> Any:
    if type(item) is NewRecord:
        options = _merged(_options(item, f"records[{index}]."), options)
        item = item.data
    if isinstance(item, bytes):
        return (item, True, *options)
    if isinstance(item, bytearray | memoryview):
        return (bytes(item), True, *options)
    try:
        return (dump(item), False, *options)
    except (TypeError, ValueError, RecursionError) as error:
        detail = {"field": "data", "index": index}
        message = f"records[{index}].data cannot be encoded as JSON: {error}{_hint(item)}"
        raise InvalidRequest(message, detail=detail) from error


def _hint(item: object) -> str:
    if isinstance(item, Iterator):
        return "; a batch is a list"
    if isinstance(item, Record):
        return "; give its data, or NewRecord(record.data, tag=record.tag)"
    return ""


DURATIONS = (3, 6, 7)
"""The options whose absence is 0: `ttl`, `delay` and `deliver_at`."""


def _merged(own: Any, common: Any) -> Any:
    """The options of a record over those of its batch."""
    of_job = (None, None, 0, 0)
    if len(own) > len(common):
        common += of_job
    elif len(own) < len(common):
        own += of_job
    pairs = enumerate(zip(own, common, strict=True))
    return tuple((a or b) if at in DURATIONS else (b if a is None else a) for at, (a, b) in pairs)


def matcher(tag: str | None) -> Any:
    """A tag filter as request bodies have it."""
    if tag is None or "*" not in tag:
        return tag
    return ["tag", "Glob", tag]


COLUMNS = ("data", "tag", "node", "meta")


def written(table: Any) -> Any:
    """The columns of a table that are stored, as a `pyarrow.Table`."""
    with extra("arrow", "append of a table"):
        import pyarrow

    if isinstance(table, pyarrow.RecordBatchReader):
        table = table.read_all()
    elif not isinstance(table, pyarrow.Table):
        table = pyarrow.table(table)
    if "data" not in table.column_names:
        message = f"the table has no column 'data', only {table.column_names}"
        raise InvalidRequest(message, detail={"field": "data"})
    return table.select([name for name in COLUMNS if name in table.column_names])


def rows_of(table: Any, tag: str | None) -> list[NewRow]:
    """The rows of a table as records."""
    table = written(table)
    found = {name: table[name].to_pylist() for name in table.column_names}
    none = [None] * len(table)
    columns = (found.get(name, none) for name in COLUMNS)
    return [_table_row(index, tag, *row) for index, row in enumerate(zip(*columns, strict=True))]


def _table_row(index: int, common: str | None, data: Any, tag: Any, node: Any, meta: Any) -> NewRow:
    if not isinstance(data, str | bytes):
        what = "null" if data is None else type(data).__name__
        message = f"records[{index}].data must be text or bytes, not {what}"
        raise InvalidRequest(message, detail={"field": "data", "index": index})
    raw = data.encode() if isinstance(data, str) else data
    packed = None if meta is None else dump(dict(meta))
    return raw, isinstance(data, bytes), common if tag is None else tag, node, packed, 0
