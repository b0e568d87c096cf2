"""Python values and Arrow tables as the records that are stored."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..errors import InvalidRequest
from ..extras import extra

if TYPE_CHECKING:
    from .backend import NewRow

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from .values import New

if TYPE_CHECKING:
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
    tag: str | None,
    meta: Mapping[str, str] | None,
    ttl_ms: int,
) -> list[NewRow]:
    """The records of an append: a list or tuple is a batch, any other value is one record."""
    items = value if isinstance(value, list | tuple) else (value,)
    common = None if meta is None else dump(meta)
    return [_row(index, item, tag, common, ttl_ms) for index, item in enumerate(items)]


def _row(index: int, item: Any, tag: str | None, meta: bytes | None, ttl_ms: int) -> NewRow:
    node = None
    if type(item) is New:
        if item.lane is not None or item.group is not None or item.delay_ms or item.deliver_at:
            bare = replace(item, lane=None, group=None, delay_ms=0, deliver_at=0)
            plain = _row(index, bare, tag, meta, ttl_ms)
            return *plain[:6], item.lane, item.group, item.delay_ms, item.deliver_at
        tag = tag if item.tag is None else item.tag
        meta = meta if item.meta is None else dump(item.meta)
        ttl_ms = item.ttl_ms or ttl_ms
        node, item = item.node, item.data
    if isinstance(item, bytes):
        return item, True, tag, node, meta, ttl_ms
    if isinstance(item, bytearray | memoryview):
        return bytes(item), True, tag, node, meta, ttl_ms
    try:
        return dump(item), False, tag, node, meta, ttl_ms
    except (TypeError, ValueError, RecursionError) as error:
        detail = {"field": "data", "index": index}
        message = f"records[{index}].data cannot be encoded as JSON: {error}"
        raise InvalidRequest(message, detail=detail) from error


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
