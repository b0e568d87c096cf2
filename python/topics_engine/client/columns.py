"""Arrow tables as records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..errors import InvalidRequest
from ..extras import extra
from .encoding import dump

if TYPE_CHECKING:
    from .backend import NewRow

COLUMNS = ("data", "tag", "node", "meta")


def written(table: Any) -> Any:
    """The columns that are written, as a `pyarrow.Table`."""
    with extra("arrow", "append of a table"):
        import pyarrow

    if isinstance(table, pyarrow.RecordBatchReader):
        table = table.read_all()
    elif not isinstance(table, pyarrow.Table):
        table = pyarrow.table(table)
    if "data" not in table.column_names:
        message = f"a table of records has a column data: this one has {table.column_names}"
        raise InvalidRequest(message, detail={"field": "data"})
    return table.select([name for name in COLUMNS if name in table.column_names])


def rows_of(table: Any, tag: str | None) -> list[NewRow]:
    """Its rows as records."""
    table = written(table)
    found = {name: table[name].to_pylist() for name in table.column_names}
    none = [None] * len(table)
    columns = (found.get(name, none) for name in COLUMNS)
    return [_row(index, tag, *row) for index, row in enumerate(zip(*columns, strict=True))]


def _row(index: int, common: str | None, data: Any, tag: Any, node: Any, meta: Any) -> NewRow:
    if not isinstance(data, str | bytes):
        what = "null" if data is None else type(data).__name__
        message = f"records[{index}].data is text or bytes, not {what}"
        raise InvalidRequest(message, detail={"field": "data", "index": index})
    raw = data.encode() if isinstance(data, str) else data
    packed = None if meta is None else dump(dict(meta))
    return raw, isinstance(data, bytes), common if tag is None else tag, node, packed, 0
