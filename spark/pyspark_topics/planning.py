"""Ranges of topics, divided into the tasks of a read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from .offsets import Span

RANGES_PER_TASK = 256
"""A task that reads many small topics reads at most so many: each is a request."""


@dataclass(frozen=True, slots=True)
class Range:
    """`lo <= seq < hi` of one topic."""

    topic_id: int
    topic: str
    lo: int
    hi: int

    def __len__(self) -> int:
        return max(0, self.hi - self.lo)


@dataclass(frozen=True, slots=True)
class Loss:
    """Records of one topic that are lost, first and last seq, and why."""

    topic: str
    first: int
    last: int
    reason: str


@dataclass(frozen=True, slots=True)
class Head:
    """A topic as it is now."""

    topic_id: int
    earliest: int
    """The first seq that is kept; one above the head when there is none."""
    end: int
    """The seq after the last one that can be read."""
    next: int
    """The seq that the next record gets: above `end` after a crash has taken unsynced ones."""
    count: int
    bytes: int

    @property
    def record_bytes(self) -> float:
        """What a record weighs, on average."""
        return self.bytes / self.count if self.count else 0.0


Splitter = Callable[[Range, int], Sequence[int]]
"""The ends, rising, of the parts of a range of so many records; the last is the range's own."""


def evenly(whole: Range, records: int) -> list[int]:
    """Parts of as many seqs each, from arithmetic alone."""
    parts = max(1, -(-len(whole) // records))
    return [whole.lo + len(whole) * i // parts for i in range(1, parts + 1)]


def plan(
    spans: Iterable[tuple[str, Span]],
    *,
    records: int,
    min_partitions: int,
    split: Splitter = evenly,
) -> list[tuple[Range, ...]]:
    """Tasks of about `records` records, at least `min_partitions` if there are so many records.

    A large topic is several tasks, small topics share one. Every seq is in exactly one task.
    """
    ranges = [Range(s.topic_id, name, s.lo, s.hi) for name, s in spans if len(s)]
    total = sum(len(r) for r in ranges)
    size = max(1, min(records, total // min_partitions))
    pieces: list[Range] = []
    for whole in ranges:
        lo = whole.lo
        for hi in [whole.hi] if len(whole) <= size else split(whole, size):
            if hi > lo:
                pieces.append(Range(whole.topic_id, whole.topic, lo, hi))
                lo = hi
        assert lo == whole.hi, f"{whole} was split up to {lo}"
    return _pack(pieces, size)


def _pack(pieces: list[Range], size: int) -> list[tuple[Range, ...]]:
    tasks: list[tuple[Range, ...]] = []
    buffered: list[Range] = []
    records = 0
    for piece in pieces:
        if buffered and (records + len(piece) > size or len(buffered) == RANGES_PER_TASK):
            tasks.append(tuple(buffered))
            buffered, records = [], 0
        buffered.append(piece)
        records += len(piece)
    if buffered:
        tasks.append(tuple(buffered))
    return tasks


def share(lags: Mapping[str, int], limit: int) -> dict[str, int]:
    """How many of `limit` each topic gets, in proportion to its lag; at most its lag, at most
    `limit` in all, and all of it when there is lag enough. Ties go to the larger lag, then by name.
    """
    total = sum(lags.values())
    if total <= limit:
        return dict(lags)
    given = {name: lag * limit // total for name, lag in lags.items()}
    left = limit - sum(given.values())
    rest = sorted(lags, key=lambda name: (-(lags[name] * limit % total), -lags[name], name))
    for name in rest[:left]:
        given[name] += 1
    return given
