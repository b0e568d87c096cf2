"""Python values as the bytes that are stored."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..errors import InvalidRequest
from .values import New

if TYPE_CHECKING:
    from .backend import NewRow

_plain = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
_ascii = json.JSONEncoder(ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode


def dump(value: Any) -> bytes:
    """JSON text. Half surrogate pairs, which UTF-8 cannot hold, are kept as escapes."""
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
    """The records of an append: a list or tuple is a batch, anything else is one record."""
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
        message = f"records[{index}].data is no JSON value: {error}"
        raise InvalidRequest(message, detail=detail) from error
