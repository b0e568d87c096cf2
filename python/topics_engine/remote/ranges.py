"""Columns of a server's topic, to the end of the stream.

One that broke off is gone on with where it came to: what is wrong with the rest the server says to
who asks for that.
"""

from __future__ import annotations

import contextlib
from typing import Any

from .caller import Caller, encoded, of_topic
from .transport import Answer

END = b"\xff\xff\xff\xff\x00\x00\x00\x00"
"""The marker behind the last batch."""


class Range:
    """The batches that have come, and the request for what has not."""

    def __init__(self, asked: dict[str, Any]) -> None:
        self.schema: Any = None
        self.batches: list[Any] = []
        self.whole = False
        self._asked = dict(asked)
        columns = asked.get("columns")
        if columns and isinstance(columns, list):
            self._asked["columns"] = [*columns, "seq", "gap_to"]

    @property
    def request(self) -> bytes:
        return encoded(self._asked) or b"{}"

    def take(self, answer: Answer) -> bool:
        """Takes what came of a stream; whether that was something."""
        import pyarrow

        before = len(self.batches)
        with contextlib.suppress(pyarrow.ArrowInvalid, OSError):
            reader = pyarrow.ipc.open_stream(answer.body)
            if self.schema is None:
                self.schema = reader.schema
                self._asked |= pinned(reader.schema)
                self._asked["to_seq"] = numbers(reader.schema)["to_seq"]
            for batch in reader:
                self.batches.append(batch)
        # Arrow takes the end of the input for the end of a stream.
        self.whole = answer.whole and answer.body.endswith(END)
        came = len(self.batches) > before
        if came:
            self._asked["from_seq"] = _cursor(self.batches[-1])
        return came or self.whole

    def shown(self, columns: object) -> Any:
        """All of it, of the columns that were asked for."""
        import pyarrow

        found = pyarrow.Table.from_batches(self.batches, self.schema)
        if isinstance(columns, list):
            found = found.select([name for name in found.column_names if name in columns])
        return found.to_reader()


def _cursor(batch: Any) -> int:
    """The cursor behind the last row, which may be a gap."""
    last = batch.slice(len(batch) - 1).to_pylist()[0]
    return int(last["gap_to"] if last["gap_to"] is not None else last["seq"])


def numbers(schema: Any) -> dict[str, int]:
    """What a stream said of itself when it began."""
    return {name.decode(): int(n) for name, n in schema.metadata.items()}


def pinned(schema: Any) -> dict[str, Any]:
    """What holds for every stream that follows one."""
    import pyarrow

    found: dict[str, Any] = {"topic_id": numbers(schema)["topic_id"]}
    if "data" in schema.names:
        binary = pyarrow.types.is_binary(schema.field("data").type)
        found["data_type"] = "binary" if binary else "string"
    return found


def whole(caller: Caller, topic: str, verb: str, asked: dict[str, Any]) -> Any:
    """A `pyarrow.RecordBatchReader` of all that `verb` answers to a request."""
    found = Range(asked)
    path = of_topic(topic, verb)
    while not found.whole:
        caller.partly(path, found.request, found.take)
    return found.shown(asked.get("columns"))
