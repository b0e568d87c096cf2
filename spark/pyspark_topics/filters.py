"""Filters that the engine applies, so that fewer rows are transferred."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader

from .compat import PUSHES_FILTERS
from .offsets import Span
from .options import Selection

# Without filters no method that names them is called.
if TYPE_CHECKING or PUSHES_FILTERS:
    from pyspark.sql.datasource import (
        EqualTo,
        Filter,
        GreaterThan,
        GreaterThanOrEqual,
        In,
        IsNotNull,
        LessThan,
        LessThanOrEqual,
        StringStartsWith,
    )

    COMPARISONS = (EqualTo, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual)


@dataclass(slots=True)
class Pushed:
    """The accepted conditions of a query, all of which must hold."""

    lo: int = 1
    hi: int | None = None
    ts_lo: int | None = None
    """Only records at or after this time, ms."""
    ts_hi: int | None = None
    """Only records before this time, ms."""
    topics: set[str] | None = None
    selection: Selection = field(default_factory=Selection)

    def take(self, filters: Iterable[Filter]) -> list[Filter]:
        """Accepts the conditions that it can; returns those that it does not apply exactly."""
        return [f for f in filters if not self._take(f)]

    def narrow(self, span: Span) -> Span:
        """The part of a span that satisfies the conditions on seq."""
        lo = max(span.lo, self.lo)
        hi = span.hi if self.hi is None else min(span.hi, self.hi)
        return Span(span.topic_id, lo, max(lo, hi))

    def _take(self, f: Filter) -> bool:
        column = getattr(f, "attribute", ())
        if isinstance(f, IsNotNull):
            return column in (("seq",), ("topic",))
        if column == ("seq",) and isinstance(f, COMPARISONS):
            return self._take_seq(f)
        if column == ("ts",) and isinstance(f, COMPARISONS):
            self._take_ts(f)
            return False  # applied in whole milliseconds
        if column == ("topic",) and isinstance(f, EqualTo | In):
            named = {f.value} if isinstance(f, EqualTo) else set(f.value)
            self.topics = named if self.topics is None else self.topics & named
            return True
        if column == ("node",) and isinstance(f, EqualTo | In):
            return self._take_nodes((f.value,) if isinstance(f, EqualTo) else tuple(f.value))
        if column == ("tag",) and isinstance(f, EqualTo | StringStartsWith):
            return self._take_tag(f)
        return False

    def _take_seq(self, f: Filter) -> bool:
        value = f.value  # type: ignore[attr-defined]
        if type(value) is not int:
            return False
        if isinstance(f, EqualTo | GreaterThanOrEqual):
            self.lo = max(self.lo, value)
        if isinstance(f, GreaterThan):
            self.lo = max(self.lo, value + 1)
        if isinstance(f, EqualTo | LessThanOrEqual):
            self.hi = value + 1 if self.hi is None else min(self.hi, value + 1)
        if isinstance(f, LessThan):
            self.hi = value if self.hi is None else min(self.hi, value)
        return True

    def _take_ts(self, f: Filter) -> None:
        value = f.value  # type: ignore[attr-defined]
        # A time without a zone is in the session's zone, which is not known here.
        if not isinstance(value, datetime) or value.tzinfo is None:
            return
        ms = value.timestamp() * 1000
        if isinstance(f, EqualTo | GreaterThan | GreaterThanOrEqual):
            lo = math.floor(ms)
            self.ts_lo = lo if self.ts_lo is None else max(self.ts_lo, lo)
        if isinstance(f, EqualTo | LessThan | LessThanOrEqual):
            hi = math.floor(ms) + 1
            self.ts_hi = hi if self.ts_hi is None else min(self.ts_hi, hi)

    def _take_nodes(self, nodes: tuple[str, ...]) -> bool:
        wanted = tuple(sorted({node for node in nodes if isinstance(node, str) and node}))
        if len(wanted) != len(set(nodes)) or self.selection.nodes:
            return False
        self.selection = Selection(self.selection.match, wanted)
        return True

    def _take_tag(self, f: EqualTo | StringStartsWith) -> bool:
        tag = f.value
        if not isinstance(tag, str) or not tag or self.selection.match is not None:
            return False
        if isinstance(f, EqualTo):
            match = ("tag", "Eq", tag)
        elif "*" not in tag:
            match = ("tag", "Glob", tag + "*")
        else:
            return False
        self.selection = Selection(match, self.selection.nodes)
        return True


class Pushes:
    """`pushFilters` of a reader, for sessions with and without filter pushdown.

    Spark refuses a reader that overrides the method while `filterPushdown.enabled` is off, and
    detects this by comparing `pushFilters.__func__` with its own. This is a property that claims to
    be Spark's own method and is still called if the setting is on.
    """

    def __init__(self, take: Callable[[list[Filter]], Iterable[Filter]]) -> None:
        self.__func__ = DataSourceReader.pushFilters
        self._take = take

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        return self._take(filters)
