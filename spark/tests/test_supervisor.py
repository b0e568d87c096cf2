"""The supervisor of the Spark page, as it stands there."""

from __future__ import annotations

import ast
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException

from python.test_snippets import snippets

from .test_page import PAGE
from .versions import needs_admission


@pytest.fixture
def page() -> dict[str, Any]:
    """The imports and the function of the page. Pauses are noted in `pauses`, and take no time."""
    (code,) = (found.text for found in snippets(PAGE) if "def supervise(" in found.text)
    tree = ast.parse(code)
    tree.body = [
        part
        for part in tree.body
        if isinstance(part, (ast.Import, ast.ImportFrom))
        or getattr(part, "name", "") == "supervise"
    ]
    names: dict[str, Any] = {"pauses": []}
    exec(compile(tree, str(PAGE), "exec"), names)
    # A module of its own: other threads sleep, too.
    names["time"] = SimpleNamespace(monotonic=time.monotonic, sleep=names["pauses"].append)
    return names


class Query:
    """A query that runs for some seconds of the clock, and ends with an error or without."""

    def __init__(self, clock: list[float], seconds: float = 0.0, error: str | None = None) -> None:
        self._clock, self._seconds, self._error = clock, seconds, error

    def awaitTermination(self) -> None:  # noqa: N802
        self._clock[0] += self._seconds
        if self._error is not None:
            raise StreamingQueryException(self._error)


@pytest.fixture
def clock(page) -> list[float]:
    now = [0.0]
    page["time"].monotonic = lambda: now[0]
    return now


def test_it_starts_a_failed_query_again_with_longer_pauses(page, clock, capsys):
    queries = [
        *(Query(clock, error=f"failed {n}\nJVM stacktrace") for n in range(3)),
        Query(clock, seconds=301, error="failed after a while"),
        Query(clock),
        Query(clock, error="is not started: the query before has ended"),
    ]
    starts = iter(queries)
    page["supervise"](lambda: next(starts))
    assert len([*starts]) == 1
    assert page["pauses"] == [2, 4, 8, 1]
    told = capsys.readouterr().out.splitlines()
    assert told[0] == "the query failed, next start in 2 s: failed 0"
    assert len(told) == 4


def test_the_longest_pause_is_the_one_that_is_given(page, clock):
    starts = iter([*(Query(clock, error="away") for _ in range(5)), Query(clock)])
    page["supervise"](lambda: next(starts), pause=1, most=5)
    assert page["pauses"] == [2, 4, 5, 5, 5]


def test_what_is_no_failure_of_the_query_ends_it(page, clock):
    starts = iter([ValueError("a mistake of the program"), Query(clock)])

    def start() -> Query:
        if isinstance(found := next(starts), Exception):
            raise found
        return found

    with pytest.raises(ValueError, match="a mistake"):
        page["supervise"](start)
    assert page["pauses"] == []


@needs_admission
def test_a_query_that_fails_once_goes_on(page, spark, topics, topic, tmp_path, capsys):
    """The second batch fails after its rows are written: it is repeated from the checkpoint."""
    topics.append(topic, list(range(300)))
    failures: list[int] = []
    starts: list[Any] = []

    def each(rows: Any, batch: int) -> None:
        out = rows.select("data").write.format("topics").mode("append")
        out.save(url=topics.url, topic=f"{topic}.out", txnAppId=topic, txnVersion=batch)
        if batch == 1 and not failures:
            failures.append(batch)
            raise RuntimeError("once")

    def start() -> Any:
        rows = spark.readStream.format("topics").option("maxOffsetsPerTrigger", 100)
        out = rows.load(url=topics.url, subscribe=topic).writeStream.foreachBatch(each)
        out = out.option("checkpointLocation", str(tmp_path / "checkpoint"))
        starts.append(out.trigger(availableNow=True).start())
        return starts[-1]

    supervise: Callable[..., None] = page["supervise"]
    supervise(start)
    assert (len(starts), failures, page["pauses"]) == (2, [1], [2.0])
    assert "next start in 2 s" in capsys.readouterr().out
    assert [p["batchId"] for p in starts[1].recentProgress if p["numInputRows"]] == [1, 2]
    assert sorted(topics.data(f"{topic}.out")) == list(range(300))
