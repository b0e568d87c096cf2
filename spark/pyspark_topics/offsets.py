"""The position of a stream: the JSON that Spark keeps in its checkpoint.

`{"v":1,"t":{"orders":[topic_id, from, to]}}`: the batch that ends here reads `from <= seq < to`, so
`to` is the next seq to read. The batch's own start is included because Spark does not keep the
first offset: after a crash in the first batch Spark would request it again, and "latest" has moved
by then.

Two more fields are there only if they are not empty. `"unread": ["orders"]` names the topics that
had records behind `to` when the batch was planned: if one of these is deleted, records are lost.
`"gone": {"orders": 3}` counts the batches since a topic was last seen; after `GONE_BATCHES` its
entry is left out.

Spark compares offsets as strings, so the keys are sorted and the text has one form only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from .errors import TopicsError

VERSION = 1
GONE_BATCHES = 100
"""The batches for which a deleted topic keeps its place, in case that the server has it again (for
example after a restart with another directory)."""


@dataclass(frozen=True, slots=True)
class Span:
    """The seqs of one topic that one batch reads: `lo <= seq < hi`."""

    topic_id: int
    lo: int
    hi: int

    def __len__(self) -> int:
        return max(0, self.hi - self.lo)


@dataclass(frozen=True, slots=True)
class Offset:
    """The spans of a batch, by topic."""

    spans: Mapping[str, Span] = field(default_factory=dict)
    unread: frozenset[str] = frozenset()
    """The topics that had more records than the batches up to this one read."""
    gone: Mapping[str, int] = field(default_factory=dict)
    """The number of batches since each of these topics was last seen."""

    def json(self) -> dict[str, Any]:
        more: dict[str, Any] = {}
        if self.unread:
            more["unread"] = sorted(self.unread)
        if self.gone:
            more["gone"] = dict(sorted(self.gone.items()))
        return more | {
            "v": VERSION,
            "t": {
                name: [span.topic_id, span.lo, span.hi] for name, span in sorted(self.spans.items())
            },
        }

    @staticmethod
    def parse(value: Mapping[str, Any]) -> Offset:
        version, topics = value.get("v"), value.get("t")
        if version != VERSION or not isinstance(topics, dict):
            raise TopicsError(
                f"an offset of version {version!r} cannot be read: this is version {VERSION}",
                "invalid_offset",
            )
        spans = {}
        for name, numbers in topics.items():
            if len(numbers) != 3 or not all(type(n) is int for n in numbers):
                raise TopicsError(f"the offset of {name!r} is {numbers!r}", "invalid_offset")
            spans[name] = Span(*numbers)
        return Offset(spans, frozenset(value.get("unread", ())), dict(value.get("gone", {})))

    def to_read(self, start: Offset) -> Iterator[tuple[str, Span]]:
        """The spans that the batch ending here reads. An entry equal to the start's was read
        before."""
        for name, span in sorted(self.spans.items()):
            if len(span) and start.spans.get(name) != span:
                yield name, span
