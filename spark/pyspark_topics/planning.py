"""Ranges of topics, divided into the tasks of a read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from .offsets import Span

RANGES_PER_TASK = 256
"""The maximum of small topics that one task reads: each is a request."""


@dataclass(frozen=True, slots=True)
class Range:
    """`lo <= seq < hi` of one topic."""

    topic_id: int
    topic: str
    lo: int
    hi: int
    base: str | None = None
    """The base of a prefix whose sealed segments have all records of the range."""

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
    """The current state of a topic."""

    topic_id: int
    earliest: int
    """The first stored seq; one above the head if there is none."""
    end: int
    """The seq after the last readable one."""
    next: int
    """The seq of the next record; above `end` after a crash has lost unsynced ones."""
    count: int
    bytes: int

    @property
    def record_bytes(self) -> float:
        """The average size of a record."""
        return self.bytes / self.count if self.count else 0.0


Splitter = Callable[[Range, int], Sequence[int]]
"""Returns the ascending ends of parts of a range with the given number of records; the last is
the range's end."""

Cutter = Callable[[Sequence[Range]], list[Range]]
"""Returns the same seqs in more ranges, in order."""


def evenly(whole: Range, records: int) -> list[int]:
    """Parts with equal numbers of seqs, computed without the engine."""
    parts = max(1, -(-len(whole) // records))
    return [whole.lo + len(whole) * i // parts for i in range(1, parts + 1)]


def plan(
    spans: Iterable[tuple[str, Span]],
    *,
    records: int,
    min_partitions: int,
    split: Splitter = evenly,
    cut: Cutter = list,
) -> list[tuple[Range, ...]]:
    """Tasks of about `records` records, at least `min_partitions` if there are enough records.

    A large topic has several tasks, small topics share one. Every seq is in exactly one task.
    """
    ranges = cut([Range(s.topic_id, name, s.lo, s.hi) for name, s in spans if len(s)])
    total = sum(len(r) for r in ranges)
    size = max(1, min(records, total // min_partitions))
    pieces: list[Range] = []
    for whole in ranges:
        lo = whole.lo
        for hi in [whole.hi] if len(whole) <= size else split(whole, size):
            if hi > lo:
                pieces.append(replace(whole, lo=lo, hi=hi))
                lo = hi
        assert lo == whole.hi, f"{whole} was split up to {lo}"
    # A task that reads only objects needs neither the log nor a server.
    sealed = [piece for piece in pieces if piece.base is not None]
    return [*_pack(sealed, size), *_pack([p for p in pieces if p.base is None], size)]


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
    """Each topic's part of `limit`, in proportion to its lag: at most its lag, at most `limit`
    in total, and the whole limit if there is enough lag. Ties go to the larger lag, then by
    name."""
    total = sum(lags.values())
    if total <= limit:
        return dict(lags)
    given = {name: lag * limit // total for name, lag in lags.items()}
    left = limit - sum(given.values())
    rest = sorted(lags, key=lambda name: (-(lags[name] * limit % total), -lags[name], name))
    for name in rest[:left]:
        given[name] += 1
    return given
