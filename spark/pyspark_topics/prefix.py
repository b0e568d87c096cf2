"""Topics of a prefix of an object store: sealed segments are read from its objects, everything else
from a view of the prefix or from a server."""

from __future__ import annotations

import atexit
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

from .access import Access, Scan, ScanRequest
from .directory import (
    VIEW_SECONDS,
    LocalScan,
    View,
    as_topics_error,
    backend,
    close_views,
    segments_of,
)
from .errors import TopicsError
from .fields import Splits
from .options import Connection, Subscription
from .planning import Head, Range

MAPS = 1_000
"""The maximum of topics whose segments a plan compares: each is a request. Others are read without
the objects."""
BASES = 4
"""The maximum of bases that a process has open."""

SAME = (
    *("first_seq", "last_seq", "first_ts", "last_ts"),
    *("file_no", "file_bytes", "count", "bytes"),
)
"""Fields of a segment. The files of a sealed one never change, and records only leave it: if all
fields are equal in a base and elsewhere, both have the same records."""

_newest: dict[tuple[int, str], View] = {}
"""The newest base, by process and URL."""
_bases: dict[tuple[int, str, str], Any] = {}
"""Engines that read a base, by process, URL and name of the base; the last used one is last."""


@atexit.register
def _close_bases() -> None:
    close_views(_newest)
    while _bases:
        _bases.popitem()[1].close()


class Rest(Access, Protocol):
    """An access to all records, of which a part is read from objects instead."""

    def segments(self, topic: str) -> dict[str, Any]:
        """The answer of `GET /v0/topics/:t/segments`."""


class Prefix(Splits):
    """See `Access`. Not thread-safe."""

    def __init__(self, to: Connection, rest: Rest) -> None:
        assert to.path is not None
        self._url = to.path
        self._rest = rest

    def keep_open(self) -> AbstractContextManager[None]:
        return self._rest.keep_open()

    def heads(self, topics: Subscription) -> dict[str, Head]:
        return self._rest.heads(topics)

    def seek(self, topic: str, ts_ms: int) -> int:
        return self._rest.seek(topic, ts_ms)

    def fill(self, whole: Range, size: int) -> int:
        return self._rest.fill(whole, size)

    def split(self, whole: Range, records: int) -> Sequence[int]:
        return super().split(whole, records) if whole.base else self._rest.split(whole, records)

    def _split(self, topic: str, asked: dict[str, int]) -> dict[str, Any]:
        engine = self._newest().engine
        request = json.dumps(asked).encode()
        answer: dict[str, Any] = json.loads(as_topics_error(lambda: engine.split(topic, request)))
        return answer

    def cut(self, ranges: Sequence[Range]) -> list[Range]:
        """A part of a range names the base if its segments are the same there as they are now."""
        newest = self._newest()
        as_topics_error(lambda: newest.refresh(VIEW_SECONDS))
        engine = newest.engine
        largest = sorted(ranges, key=len, reverse=True)[:MAPS]
        runs = {one: self._runs(engine, one) for one in largest}
        names = tuple(dict.fromkeys(one.topic for one, found in runs.items() if found))
        heads = self._rest.heads(Subscription(names)) if names else {}
        parts: list[Range] = []
        for one in ranges:
            head = heads.get(one.topic)
            at = one.lo
            if head is not None and head.topic_id == one.topic_id:
                # What expired is still counted in its segment.
                least = max(one.lo, head.earliest)
                for first, end in runs.get(one, ()):
                    lo, hi = max(first, least), min(end, one.hi)
                    if lo < hi:
                        parts.append(replace(one, lo=at, hi=lo))
                        parts.append(replace(one, lo=lo, hi=hi, base=engine.engine.base))
                        at = hi
            parts.append(replace(one, lo=at))
        return [part for part in parts if len(part)]

    def _runs(self, engine: Any, one: Range) -> list[tuple[int, int]]:
        """The seqs of adjacent sealed segments that are the same in the base and in the rest: the
        first ones, and the ones after the last."""
        there = _if_found(partial(segments_of, engine, one.topic))
        if there is None or there["topic_id"] != one.topic_id or there["head_seq"] < one.lo:
            return []
        now = _if_found(partial(self._rest.segments, one.topic))
        if now is None or now["topic_id"] != one.topic_id:
            return []
        known = {_identity(segment) for segment in now["segments"]}
        runs: list[tuple[int, int]] = []
        for segment in there["segments"]:
            first, end = segment["first_seq"], segment["last_seq"] + 1
            if end <= one.lo or first >= one.hi or _identity(segment) not in known:
                continue
            if runs and runs[-1][1] == first:
                runs[-1] = (runs[-1][0], end)
            else:
                runs.append((first, end))
        return runs

    @contextmanager
    def scan(self, request: ScanRequest) -> Iterator[Scan]:
        if request.base is None:
            with self._rest.scan(request) as scan:
                yield scan
            return
        engine = self._base(request.base)
        try:
            yield LocalScan(engine, request)
        except TopicsError as e:
            if e.code == "cold_unavailable" or "a cold segment" in e.message:
                # If the base was deleted, no wait helps.
                as_topics_error(engine.engine.is_current)
            raise

    def _newest(self) -> View:
        key = (os.getpid(), self._url)
        if key not in _newest:
            opens = partial(backend, self._url, sealed=True)
            _newest[key] = as_topics_error(lambda: View(opens))
        return _newest[key]

    def _base(self, name: str) -> Any:
        """The engine that reads a base: kept open, because an open fetches the base."""
        key = (os.getpid(), self._url, name)
        engine = _bases.pop(key, None)
        if engine is None:
            engine = as_topics_error(lambda: backend(self._url, sealed=True, base=name))
            while len(_bases) >= BASES:
                _bases.pop(next(iter(_bases))).close()
        _bases[key] = engine
        return engine


def _identity(segment: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(segment.get(field) for field in SAME)


def _if_found(answer: Callable[[], dict[str, Any]]) -> dict[str, Any] | None:
    try:
        return answer()
    except TopicsError as e:
        if e.code != "topic_not_found":
            raise
        return None
