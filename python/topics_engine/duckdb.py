"""Topics in DuckDB: a view of each, and the table macro `topic_scan`.

```python
con = duckdb.connect()
te.duckdb.attach(con, db)
con.sql("select tag, count(*) from orders where seq > 1000 group by tag")
con.sql("select * from topic_scan('orders', from_seq := 1000, tag := 'eu:*')")
```
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, cast

from .client.arguments import EPOCH
from .client.database import Database
from .client.pushdown import Condition, Operator, scanned
from .client.schema import Schema, fields
from .errors import InvalidRequest
from .extras import extra

if TYPE_CHECKING:
    from .client.backend import Backend

__all__ = ["attach"]

MACRO: Final = """
create or replace temp macro topic_scan(
    name, from_seq := 0, to_seq := 9007199254740991, tag := null
) as table
select t.* from query_table(name) t
where t.seq > from_seq and t.seq <= to_seq
    and case
        when tag is null then true
        when tag like '%*' then starts_with(t.tag, tag[:-2])
        else t.tag = tag
    end
"""


def attach(con: Any, db: Database, schemas: Mapping[str, Schema] | None = None) -> list[str]:
    """Makes a view of each topic in a connection of DuckDB, and the table macro `topic_scan(name,
    from_seq, to_seq, tag)`. Each query reads what is there when it begins. Call it again for topics
    that are created later.

    Conditions on `seq`, `ts` and `tag` select what is read, as far as DuckDB passes them on, and
    only the columns of the query are read.

    Args:
        con: the connection.
        db: an open database or a client of a server.
        schemas: typed columns by topic, as `read().to_arrow` takes them.

    Returns:
        The names of the topics.

    Raises:
        NotFound: a topic with a schema does not exist.
        InvalidRequest: a schema is wrong.
        ModuleNotFoundError: pyarrow is not installed (`pip install 'topics-engine[duckdb]'`).

    Example:
        ```python
        import duckdb

        con = duckdb.connect()
        te.duckdb.attach(con, db, schemas={"orders": {"price": "double"}})
        con.sql("select sum(price) from orders").show()
        ```
    """
    if not isinstance(db, Database):
        raise InvalidRequest(f"db must be a database, not {db!r}", detail={"field": "db"})
    dataset = _dataset_class()
    given = dict(schemas or {})
    names = [*given, *(name for name in db if name not in given)]
    for name in names:
        con.register(name, dataset(db._backend, name, given.get(name)))
    con.execute(MACRO)
    return names


def _dataset_class() -> Any:
    """The class of the tables that DuckDB reads, with the columns and the filter of a query."""
    with extra("duckdb", "duckdb.attach"):
        import pyarrow
        import pyarrow.dataset

    class TopicDataset(pyarrow.dataset.Dataset):  # type: ignore[misc]
        """A topic as a dataset; every scanner is a new scan, up to the head of then."""

        def __init__(self, backend: Backend, topic: str, schema: Schema | None) -> None:
            self._backend, self._topic = backend, topic
            self._typed = {} if schema is None else fields("schema", schema)
            self._shape: dict[str, Any] = {}
            request: dict[str, Any] = {"from_seq": "earliest"}
            if self._typed:
                request |= {"to_seq": 0, "fields": self._typed}
            stream = backend.scan(topic, request, None if self._typed else 1)
            self._schema = pyarrow.RecordBatchReader.from_stream(stream).schema.remove_metadata()
            if not self._typed:
                # The type of `data` is that of the first record; every later scan keeps it.
                binary = pyarrow.types.is_binary(self._schema.field("data").type)
                self._shape["data_type"] = "binary" if binary else "string"

        @property
        def schema(self) -> Any:
            return self._schema

        def scanner(
            self, columns: Sequence[str] | None = None, filter: Any = None, **_: Any
        ) -> Any:
            names = self._schema.names
            shown = names if columns is None else list(columns)
            needed = {*shown, *(name for name in names if name in str(filter))}
            found = [] if filter is None else conditions(str(filter), names)
            stream = scanned(self._backend, self._topic, needed, self._typed, found, **self._shape)
            reader = pyarrow.RecordBatchReader.from_stream(stream)
            return pyarrow.dataset.Scanner.from_batches(reader, columns=shown, filter=filter)

    return TopicDataset


COMPARED: Final = re.compile(
    r'\((?P<name>seq|ts|tag) (?P<op><|<=|==|>=|>) (?:(?P<int>-?\d+)|"(?P<text>[^"\\]*)"|'
    r"(?P<time>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)(?:\.(?P<fraction>\d{1,9}))?Z)\)",
    re.ASCII,
)


def conditions(text: str, names: Sequence[str]) -> list[Condition]:
    """Conditions that all rows meet for which a filter holds, from its text as pyarrow writes it.
    There are none if the name of a column could be taken for another part of that text.
    """
    if not all(re.fullmatch(r"[\w.$\[\]-]+", name) for name in names):
        return []
    return [found for part in _conjuncts(text) if (found := _condition(part)) is not None]


def _conjuncts(text: str) -> Iterator[str]:
    """The parts of `(a and b)`."""
    depth, quoted, at = 0, False, 0
    while at < len(text):
        match text[at]:
            case "\\" if quoted:
                at += 1
            case '"':
                quoted = not quoted
            case "(" | ")" if not quoted:
                depth += 1 if text[at] == "(" else -1
            case " " if depth == 1 and not quoted and text.startswith(" and ", at):
                if text[0] == "(" and text[-1] == ")":
                    yield from _conjuncts(text[1:at])
                    yield from _conjuncts(text[at + 5 : -1])
                    return
        at += 1
    yield text


def _condition(text: str) -> Condition | None:
    if (found := COMPARED.fullmatch(text)) is None:
        return None
    name, operator = found["name"], cast("Operator", found["op"])
    if name == "seq" and found["int"]:
        return (name, operator, int(found["int"]))
    if name == "tag" and found["text"] is not None:
        return (name, operator, found["text"])
    if name == "ts" and found["time"]:
        whole = datetime.fromisoformat(found["time"]).replace(tzinfo=UTC) - EPOCH
        nanos = int((found["fraction"] or "").ljust(9, "0"))
        return (name, operator, (whole // timedelta(seconds=1) * 10**9 + nanos, 10**6))
    return None
