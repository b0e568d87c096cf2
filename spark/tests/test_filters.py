"""Filters: accepted ones are applied exactly, all others are returned to Spark."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from pyspark_topics.compat import PUSHES_FILTERS
from pyspark_topics.filters import Pushed
from pyspark_topics.offsets import Span
from pyspark_topics.options import Selection

from .versions import NO_FILTERS

if not PUSHES_FILTERS:
    pytest.skip(NO_FILTERS, allow_module_level=True)

from pyspark.sql.datasource import (
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringStartsWith,
)


def taken(*filters):
    pushed = Pushed()
    left = pushed.take(filters)
    return pushed, left


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        (EqualTo(("seq",), 5), (5, 6)),
        (GreaterThan(("seq",), 5), (6, 11)),
        (GreaterThanOrEqual(("seq",), 5), (5, 11)),
        (LessThan(("seq",), 5), (1, 5)),
        (LessThanOrEqual(("seq",), 5), (1, 6)),
        (GreaterThan(("seq",), 99), (100, 100)),
        (LessThan(("seq",), -4), (1, 1)),
    ],
)
def test_seqs_narrow_a_range(condition, expected):
    pushed, left = taken(condition)
    span = pushed.narrow(Span(1, 1, 11))
    assert (left, (span.lo, span.hi)) == ([], expected)


def test_all_conditions_hold():
    pushed, left = taken(
        GreaterThan(("seq",), 2),
        GreaterThan(("seq",), 4),
        LessThan(("seq",), 9),
        LessThanOrEqual(("seq",), 7),
        EqualTo(("topic",), "a"),
        In(("topic",), ("a", "b")),
        IsNotNull(("seq",)),
    )
    assert (pushed.narrow(Span(1, 1, 11)), left, pushed.topics) == (Span(1, 5, 8), [], {"a"})


def test_times_are_narrowed_and_left_to_spark():
    at = datetime(2026, 1, 1, 0, 0, 0, 1500, tzinfo=UTC)
    ms = 1767225600001
    later = [GreaterThanOrEqual(("ts",), at), LessThan(("ts",), at)]
    pushed, left = taken(*later)
    assert (left, pushed.ts_lo, pushed.ts_hi) == (later, ms, ms + 1)
    naive = GreaterThan(("ts",), at.replace(tzinfo=None))
    pushed, left = taken(naive)
    assert (left, pushed.ts_lo) == ([naive], None)


def test_tags_and_nodes():
    pushed, left = taken(EqualTo(("tag",), "eu"), In(("node",), ("b", "a", "b")))
    assert (pushed.selection, left) == (Selection(("tag", "Eq", "eu"), ("a", "b")), [])
    pushed, left = taken(StringStartsWith(("tag",), "eu:"))
    assert (pushed.selection.match, left) == (("tag", "Glob", "eu:*"), [])


@pytest.mark.parametrize(
    "condition",
    [
        Not(EqualTo(("seq",), 5)),
        Not(EqualTo(("tag",), "eu")),
        EqualTo(("data",), "x"),
        EqualTo(("seq",), None),
        EqualTo(("tag",), ""),
        EqualTo(("node",), ""),
        In(("node",), ("a", None)),
        StringStartsWith(("tag",), "a*"),
        StringStartsWith(("tag",), ""),
        StringContains(("tag",), "a"),
        IsNotNull(("tag",)),
        EqualTo(("meta", "seq"), 5),
    ],
)
def test_what_the_engine_cannot_say_goes_back(condition):
    pushed, left = taken(condition)
    assert left == [condition]
    assert pushed == Pushed()


def test_a_second_condition_of_a_kind_goes_back():
    second = StringStartsWith(("tag",), "e")
    pushed, left = taken(
        EqualTo(("tag",), "eu"), second, EqualTo(("node",), "a"), EqualTo(("node",), "b")
    )
    assert left == [second, EqualTo(("node",), "b")]
    assert pushed.selection == Selection(("tag", "Eq", "eu"), ("a",))
