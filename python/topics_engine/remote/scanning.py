"""A range of a server's topic as an Arrow stream, fetched in large parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..errors import TopicsError
from .caller import ARROW, Caller, encoded, given, of_topic
from .leasing import matcher

if TYPE_CHECKING:
    from typing_extensions import CapsuleType

# Records of a part.
PART = 1_000_000


class Scan:
    """Batches that were fetched, with the schema of the first part."""

    def __init__(self, reader: Any, topic_id: int, to_seq: int) -> None:
        self._reader = reader
        self.topic_id = topic_id
        self.to_seq = to_seq

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> CapsuleType:
        found: CapsuleType = self._reader.__arrow_c_stream__(requested_schema)
        return found

    def __arrow_c_schema__(self) -> CapsuleType:
        found: CapsuleType = self._reader.schema.__arrow_c_schema__()
        return found


def scan(
    caller: Caller,
    topic: str,
    *,
    after: int | None = None,
    upto: int | None = None,
    skip_nodes: Sequence[str] | None = None,
    match: str | None = None,
    topic_id: int | None = None,
) -> Scan:
    """The records after a seq, to the head of when it begins, or to `upto`."""
    import pyarrow
    import pyarrow.compute as compute

    batches: list[Any] = []
    schema = None
    while True:
        body = given(
            from_seq="earliest" if after is None else after,
            limit=PART,
            node=list(skip_nodes) if skip_nodes else None,
            match=matcher(match),
            topic_id=topic_id,
            include_tags=True,
        )
        raw = caller.call("POST", of_topic(topic, "diff"), encoded(body), accept=ARROW)
        try:
            # A stream without its end is one that failed.
            with pyarrow.ipc.open_stream(raw) as reader:
                told = {name.decode(): int(n) for name, n in (reader.schema.metadata or {}).items()}
                part = list(reader)
                schema = schema or reader.schema
        except pyarrow.ArrowInvalid as error:
            raise TopicsError(f"the server's Arrow stream broke off: {error}") from error
        topic_id = told["topic_id"]
        upto = told["head_seq"] if upto is None else min(upto, told["head_seq"])
        for batch in part:
            if schema.field("data").type != batch.schema.field("data").type:
                batch = batch.cast(schema)
            batches.append(batch.filter(compute.less_equal(batch["seq"], upto)))
        stuck = after is not None and told["to_seq"] <= after
        after = told["to_seq"]
        if after >= upto or stuck:
            reader = pyarrow.RecordBatchReader.from_batches(schema, batches)
            return Scan(reader, topic_id, min(after, upto))
