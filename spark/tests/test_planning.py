"""Offsets and partitions: every seq is in exactly one task, whatever the shape of the topics."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark_topics.errors import TopicsError
from pyspark_topics.offsets import Offset, Span
from pyspark_topics.planning import RANGES_PER_TASK, Range, evenly, plan, share

names = st.text("abc.", min_size=1, max_size=6)
spans = st.builds(
    lambda i, lo, n: Span(i, lo, lo + n), st.integers(1), st.integers(1, 99), st.integers(0, 5000)
)
topics = st.dictionaries(names, spans, max_size=12)


@given(topics)
def test_an_offset_comes_back_and_its_text_is_canonical(found: dict[str, Span]):
    text = json.dumps(Offset(found).json())
    backwards = dict(reversed(list(found.items())))
    assert json.dumps(Offset(backwards).json()) == text
    assert Offset.parse(json.loads(text)) == Offset(found)
    # The operations of Spark on an offset that it passes back.
    assert json.dumps(json.loads(text)) == text


def test_an_offset_is_what_the_documentation_says():
    assert (
        json.dumps(Offset({"orders": Span(7, 3, 9)}).json())
        == '{"v": 1, "t": {"orders": [7, 3, 9]}}'
    )


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"v": 2, "t": {}},
        {"v": 1},
        {"v": 1, "t": {"a": [1, 2]}},
        {"v": 1, "t": {"a": [1, 2, "3"]}},
    ],
)
def test_what_is_no_offset_is_refused(value: dict[str, object]):
    with pytest.raises(TopicsError):
        Offset.parse(value)


def test_a_batch_reads_from_its_own_start():
    end = Offset({"a": Span(1, 5, 9), "b": Span(2, 4, 4), "c": Span(3, 1, 8)})
    # The first batch, started at "latest", runs again after a crash: the start has moved past the
    # end.
    moved = Offset({"a": Span(1, 12, 12), "b": Span(2, 4, 4), "c": Span(3, 1, 1)})
    assert dict(end.to_read(moved)) == {"a": Span(1, 5, 9), "c": Span(3, 1, 8)}
    # Another source had new records, this one had none: the offset is the previous one.
    assert dict(end.to_read(end)) == {}


@given(topics, st.integers(1, 3000), st.integers(1, 9))
def test_tasks_cover_every_seq_once(found: dict[str, Span], records: int, least: int):
    tasks = plan(sorted(found.items()), records=records, min_partitions=least)
    pieces = [piece for task in tasks for piece in task]
    covered = {(p.topic, seq) for p in pieces for seq in range(p.lo, p.hi)}
    assert sum(len(p) for p in pieces) == len(covered)
    assert covered == {(n, seq) for n, s in found.items() for seq in range(s.lo, s.hi)}
    assert all(p.topic_id == found[p.topic].topic_id for p in pieces)
    total = sum(len(s) for s in found.values())
    assert len(tasks) >= min(least, total)
    for task in tasks:
        assert sum(len(p) for p in task) <= records
        assert len(task) <= RANGES_PER_TASK


def test_many_small_topics_share_tasks():
    found = [(f"t{i:05}", Span(i, 1, 4)) for i in range(10_000)]
    tasks = plan(found, records=1_000_000, min_partitions=1)
    assert len(tasks) == -(-10_000 // RANGES_PER_TASK)


def test_the_engine_says_where_a_large_topic_is_split():
    asked = []

    def split(whole: Range, records: int) -> list[int]:
        asked.append((whole, records))
        return [40, 41, 101]

    tasks = plan([("a", Span(1, 1, 101))], records=50, min_partitions=1, split=split)
    assert asked == [(Range(1, "a", 1, 101), 50)]
    assert [(t.lo, t.hi) for task in tasks for t in task] == [(1, 40), (40, 41), (41, 101)]


def test_a_task_reads_from_objects_or_from_elsewhere():
    def cut(ranges: Sequence[Range]) -> list[Range]:
        return [
            part
            for one in ranges
            for part in (replace(one, hi=one.lo + 5, base="b"), replace(one, lo=one.lo + 5))
        ]

    found = {name: Span(i, 1, 11) for i, name in enumerate("abc", 1)}
    tasks = plan(sorted(found.items()), records=15, min_partitions=1, cut=cut)
    assert [{one.base for one in task} for task in tasks] == [{"b"}, {None}]
    assert sorted(one.lo for task in tasks for one in task) == [1, 1, 1, 6, 6, 6]


def test_a_split_that_leaves_something_out_is_an_error():
    with pytest.raises(AssertionError):
        plan([("a", Span(1, 1, 101))], records=50, min_partitions=1, split=lambda w, n: [60])


def test_even_parts():
    assert evenly(Range(1, "a", 1, 11), 4) == [4, 7, 11]


@given(st.dictionaries(names, st.integers(0, 10_000), max_size=30), st.integers(1, 5000))
def test_shares_are_in_proportion_to_the_lag(lags: dict[str, int], room: int):
    given_ = share(lags, room)
    total = sum(lags.values())
    assert sum(given_.values()) == min(total, room)
    for name, lag in lags.items():
        assert 0 <= given_[name] <= lag
        if total > room:
            assert abs(given_[name] - lag * room / total) < 1
