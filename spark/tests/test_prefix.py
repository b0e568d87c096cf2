"""Topics of an object store: sealed segments from its objects, everything else from its log, or
from a server."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from local_spark import HERE
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import LongType, StringType, StructType
from pyspark_topics import DefaultSource, directory, prefix
from pyspark_topics.client import Backoff, Client
from pyspark_topics.directory import backend
from pyspark_topics.errors import InvalidOption, TopicsError
from pyspark_topics.options import Connection
from pyspark_topics.planning import Range

import topics_engine as te
from support.server import Server
from support.waiting import until

from .object_store import CREDENTIALS, ObjectStore
from .versions import run_to_end

SEGMENT = 1000
SCHEMA = StructType().add("seq", LongType()).add("data", StringType())
LARGE = "x" * 200


class Shipped:
    """A server that ships to a folder, and the store that reads the folder."""

    def __init__(self, where: Path) -> None:
        where.mkdir(exist_ok=True)
        self.folder = where / "remote"
        self.server = Server(
            where / "data",
            remote_url=f"file://{self.folder}",
            remote_base_interval_ms=100,
            segment_max_events=SEGMENT,
        )
        self.store: ObjectStore

    def __enter__(self) -> Shipped:
        self.server.__enter__()
        self.client = Client(Connection(self.server.url, None, None, 60.0))
        self.store = ObjectStore(self.folder)
        return self

    def __exit__(self, *why: object) -> None:
        self.client.close()
        self.store.close()
        self.server.__exit__(*why)

    @property
    def file(self) -> str:
        return f"file://{self.folder}"

    def append(self, topic: str, count: int, **fields: Any) -> None:
        records = [{"data": {"n": n, "pad": LARGE}, **fields} for n in range(count)]
        for at in range(0, count, 500):
            body = {"records": records[at : at + 500]}
            self.client.call("POST", f"/v0/topics/{topic}", body)

    def delete(self, topic: str, *seqs: int) -> None:
        self.client.call("POST", f"/v0/topics/{topic}/delete", {"seqs": list(seqs)})

    def publish(self, topic: str, sealed: int) -> None:
        """Waits for a base that has sealed segments up to this seq, with all deletes so far."""
        self.client.call("POST", "/v0/topics/mark", {"records": [{"data": 1}] * SEGMENT})
        mark = self.client.call("GET", "/v0/topics/mark")["head_seq"]

        def is_there() -> bool:
            self.client.call("POST", "/v0/admin/checkpoint")
            ends = {name: self.end(name) for name in (topic, "mark")}
            return ends[topic] >= sealed and ends["mark"] >= mark // SEGMENT * SEGMENT

        until(is_there, 60)

    def keep_base(self) -> None:
        """The store has the newest base from now on, and no later one."""
        self.store.folder = Path(shutil.copytree(self.folder, self.folder.with_name("kept")))

    def copy_rounds(self) -> None:
        """Those that were shipped since."""
        for found in self.folder.glob("*/r*"):
            shutil.copy(found, self.store.folder / found.relative_to(self.folder))

    def end(self, topic: str) -> int:
        """The last sealed record of the newest base."""
        engine = None
        try:
            engine = backend(self.file, sealed=True)
            return int(json.loads(engine.state(topic))["head_seq"])
        except (te.InvalidRequest, te.NotFound):
            return 0
        finally:
            if engine is not None:
                engine.close()

    def options(self, topic: str, *, served: bool, objects: bool = True) -> dict[str, str]:
        places = {"url": self.server.url} if served else {}
        places |= {"path": self.store.url} if objects else {}
        return {**places, "subscribe": topic, "retryTimeoutMs": "60000"}


@pytest.fixture(scope="module", autouse=True)
def credentials() -> Iterator[None]:
    """Those of the store. Spark's workers may have begun without them: they read the folder."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in CREDENTIALS.items():
            patch.setenv(name, value)
        yield


@pytest.fixture
def shipped(tmp_path: Path) -> Iterator[Shipped]:
    with Shipped(tmp_path) as shipped:
        yield shipped
        forget()


def forget() -> None:
    """Closes what this process has open, as if it were another one."""
    directory.close_views(directory._views)
    prefix._close_bases()


@pytest.fixture
def orders(shipped: Shipped) -> Shipped:
    """Three sealed segments with deletes, and records above them."""
    shipped.append("orders", 3500, tag="old")
    shipped.delete("orders", 7, 8, 2000)
    shipped.publish("orders", 3000)
    return shipped


def reader(options: dict[str, str]) -> Any:
    return DefaultSource(CaseInsensitiveDict(options)).reader(SCHEMA)


def ranges(partitions: list[Any]) -> list[Range]:
    return sorted((r for p in partitions for r in p.value), key=lambda r: (r.topic, r.lo))


def rows(reading: Any, partitions: list[Any]) -> list[tuple[Any, ...]]:
    batches = [batch for one in partitions for batch in reading.read(one)]
    return sorted(tuple(row.values()) for batch in batches for row in batch.to_pylist())


def read(options: dict[str, str]) -> tuple[list[tuple[Any, ...]], list[Range]]:
    reading = reader(options)
    partitions = reading.partitions()
    return rows(reading, partitions), ranges(partitions)


def pinned(found: list[Range]) -> list[tuple[int, int]]:
    return [(one.lo, one.hi) for one in found if one.base is not None]


def others(found: list[Range]) -> list[tuple[int, int]]:
    return [(one.lo, one.hi) for one in found if one.base is None]


@pytest.mark.parametrize("served", [False, True])
def test_every_record_is_read_once(orders, served):
    expected, whole = read(orders.options("orders", served=True, objects=False))
    assert len(expected) == 3497
    assert others(whole) == [(1, 3501)]
    found, parts = read(orders.options("orders", served=served))
    assert found == expected
    assert pinned(parts) == [(1, 3001)]
    assert others(parts) == [(3001, 3501)]
    # More tasks than segments.
    many = {"maxRecordsPerPartition": "700"}
    found, parts = read(orders.options("orders", served=served) | many)
    assert found == expected
    assert len(pinned(parts)) >= 4
    assert parts[0].lo == 1
    assert all(a.hi == b.lo for a, b in itertools.pairwise(parts))


def test_a_task_over_sealed_segments_reads_neither_log_nor_tails(orders):
    options = orders.options("orders", served=False)
    expected, _ = read(orders.options("orders", served=True, objects=False))
    reading = reader(options)
    partitions = reading.partitions()
    assert "r" in orders.store.kinds()
    (task,) = [p for p in partitions if all(r.base for r in p.value)]
    forget()
    orders.store.reads.clear()
    assert rows(reading, [task]) == [row for row in expected if row[0] <= 3000]
    assert orders.store.kinds() == {"HEAD", "b", "p"}
    reads = orders.store.reads
    assert [reads.count(k) for k in reads if k == "HEAD" or "/b" in k] == [1, 1]
    # Another task of the process.
    orders.store.reads.clear()
    rows(reading, [task])
    assert "r" not in orders.store.kinds()
    assert not any("/b" in key for key in orders.store.reads)
    # Only the range above them needs the log.
    assert not directory._views
    rows(reading, partitions)
    assert "r" in orders.store.kinds()


def test_beside_a_server_nobody_reads_the_log(orders):
    reading = reader(orders.options("orders", served=True))
    rows(reading, reading.partitions())
    assert orders.store.kinds() == {"HEAD", "b", "p"}


@pytest.mark.parametrize("served", [False, True])
def test_segments_that_have_changed_since_the_base_are_not_read_from_it(orders, served):
    orders.keep_base()
    orders.delete("orders", 1500)
    orders.append("orders", 10, tag="new")
    expected, _ = read(orders.options("orders", served=True, objects=False))
    assert 1500 not in [row[0] for row in expected]
    until(partial(is_shipped, orders, 3510), 60)
    orders.copy_rounds()
    found, parts = read(orders.options("orders", served=served))
    assert found == expected
    assert pinned(parts) == [(1, 1001), (2001, 3001)]
    assert others(parts) == [(1001, 2001), (3001, 3511)]


@pytest.mark.parametrize("served", [False, True])
def test_gaps_are_those_of_the_server(shipped, served):
    shipped.client.call("PUT", "/v0/topics/capped", {"cap_records": 2500})
    shipped.append("capped", 4200)
    shipped.publish("capped", 3500)
    more = {"startingOffsets": '{"capped": 1}', "gaps": "emit"}
    expected, _ = read(shipped.options("capped", served=True, objects=False) | more)
    found, parts = read(shipped.options("capped", served=served) | more)
    assert found == expected
    assert (expected[0][0], expected[0][1]) == (1, None)
    assert pinned(parts)


@pytest.mark.parametrize("served", [False, True])
def test_records_that_have_expired_since_the_base_are_not_read_from_it(orders, served):
    orders.keep_base()
    orders.client.call("PUT", "/v0/topics/orders", {"ttl_ms": 1})

    def has_expired() -> bool:
        with te.open(orders.file, read_only=True) as view:
            return view.topic("orders").state().earliest_seq == 3501

    until(has_expired, 60)
    orders.copy_rounds()
    more = {"startingOffsets": '{"orders": 1}', "gaps": "emit"}
    expected, _ = read(orders.options("orders", served=True, objects=False) | more)
    assert expected == [(1, None)]
    found, parts = read(orders.options("orders", served=served) | more)
    assert found == expected
    assert not pinned(parts)


def test_filters_and_times_narrow_what_is_read(orders, pushing, spark, topics):
    at = topics.moment()
    orders.append("orders", 2000, tag="late")
    orders.publish("orders", 5000)
    options = orders.options("orders", served=True) | {"path": orders.file}
    frame = spark.read.format("topics").options(**options, pushFilters="true").load()
    assert frame.filter("tag = 'late'").count() == 2000
    assert frame.filter("seq between 999 and 1002").count() == 4
    found, parts = read(options | {"startingTimestamp": str(at)})
    assert [row[0] for row in found] == list(range(3501, 5501))
    assert pinned(parts) == [(3501, 5001)]


def test_a_topic_that_was_created_again_is_read_from_the_server(orders):
    orders.keep_base()
    orders.client.call("DELETE", "/v0/topics/orders")
    orders.append("orders", 3200, tag="again")
    expected, _ = read(orders.options("orders", served=True, objects=False))
    found, parts = read(orders.options("orders", served=True))
    assert found == expected
    assert len(found) == 3200
    assert not pinned(parts)


def test_the_prefix_of_another_server_is_not_used(orders, tmp_path):
    with Shipped(tmp_path / "other") as other:
        other.append("orders", 3500, tag="other")
        other.publish("orders", 3000)
        ids = {one.client.call("GET", "/v0/topics/orders")["topic_id"] for one in (orders, other)}
        assert len(ids) == 1, "they differ in more than this"
        options = orders.options("orders", served=True) | {"path": other.store.url}
        found, parts = read(options)
        assert not pinned(parts)
        assert found == read(orders.options("orders", served=True, objects=False))[0]


def test_a_base_that_was_deleted_is_an_error_without_a_retry(orders, monkeypatch):
    def never(_self: Backoff, error: Exception, _least: float = 0.0) -> None:
        raise AssertionError(f"waited after {error}")

    reading = reader(orders.options("orders", served=True))
    partitions = reading.partitions()
    (name,) = {r.base for r in ranges(partitions) if r.base}
    orders.append("orders", 1000)
    orders.publish("orders", 4000)
    (orders.folder / name.split(":")[0]).unlink()
    monkeypatch.setattr(Backoff, "wait", never)
    forget()
    with pytest.raises(TopicsError, match=r"has expired.*remote_window_ms"):
        rows(reading, partitions)
    # A new plan uses a newer base.
    assert len(read(orders.options("orders", served=True))[0]) == 4497


def test_options(orders, tmp_path):
    with pytest.raises(InvalidOption, match="exclude each other"):
        reader({"url": orders.server.url, "path": str(tmp_path), "subscribe": "a"})
    # What needs a server has one.
    reader(orders.options("orders", served=True) | {"consumer": "c", "badRecords": "topic:bad"})
    with pytest.raises(InvalidOption, match='"consumer" needs a server'):
        reader(orders.options("orders", served=False) | {"consumer": "c"})


def in_spark(orders: Shipped, **places: bool) -> dict[str, str]:
    options = orders.options("orders", **places)
    return options | ({"path": orders.file} if "path" in options else {})


def start(spark: Any, topics: Any, sink: str, where: Path, options: dict[str, str]) -> Any:
    frame = spark.readStream.format("topics").options(**options).load()
    writer = frame.selectExpr("cast(seq as string) as data").writeStream.format("topics")
    return writer.options(url=topics.url, topic=sink, checkpointLocation=str(where))


def test_a_stream_changes_between_a_server_and_a_prefix(orders, spark, topics, topic, tmp_path):
    def run(**places: bool) -> None:
        options = in_spark(orders, **places) | {"maxOffsetsPerTrigger": "2000"}
        checkpoint = tmp_path / "checkpoint"
        writer = start(spark, topics, topic, checkpoint, options)
        run_to_end(writer.trigger(availableNow=True).start, checkpoint)

    def offsets() -> list[Any]:
        folder = tmp_path / "checkpoint" / "offsets"
        last = max(int(f.name) for f in folder.iterdir() if f.name.isdecimal())
        return json.loads((folder / str(last)).read_text().splitlines()[-1])["t"]["orders"]

    deleted = {7, 8, 2000}

    def expected(end: int) -> list[int]:
        return [seq for seq in range(1, end + 1) if seq not in deleted]

    end, steps = 3500, [(True, True), (True, False), (False, True), (True, True)]
    for served, objects in steps:
        run(served=served, objects=objects)
        assert sorted(topics.data(topic)) == expected(end)
        assert offsets()[2] == end + 1
        orders.append("orders", 1000)
        end += 1000
        orders.publish("orders", end // SEGMENT * SEGMENT)

        until(partial(is_shipped, orders, end), 60)


@pytest.mark.parametrize("served", [False, True])
def test_a_stream_goes_on_with_new_bases(orders, spark, topics, topic, tmp_path, served):
    options = in_spark(orders, served=served)
    query = start(spark, topics, topic, tmp_path / "checkpoint", options).start()
    try:
        end = 3500
        for _ in range(2):
            until(partial(has, topics, topic, end - 3), 60)
            orders.append("orders", 1500)
            end += 1500
            orders.publish("orders", end // SEGMENT * SEGMENT)
        until(partial(has, topics, topic, end - 3), 60)
    finally:
        query.stop()
    assert query.exception() is None
    assert len(set(topics.data(topic))) == end - 3


def is_shipped(orders: Shipped, end: int) -> bool:
    with te.open(orders.file, read_only=True) as view:
        return view.topic("orders").state().head_seq == end


def has(topics: Any, topic: str, count: int) -> bool:
    with suppress(TopicsError):
        return bool(topics.state(topic)["count"] == count)
    return False


CLUSTER = """
import sys
from local_spark import session
spark = session("cluster", master="local-cluster[2,1,1024]")
frame = spark.read.format("topics").options(maxRecordsPerPartition="1000", subscribe="orders")
for path, url in ((sys.argv[1], None), (sys.argv[1], sys.argv[2])):
    given = {"path": path} if url is None else {"path": path, "url": url}
    rows = frame.options(**given).load().select("seq").collect()
    print("rows", len(rows), sum(row.seq for row in rows))
spark.stop()
"""


def test_executors_of_a_cluster_read_the_objects(orders):
    expected, _ = read(orders.options("orders", served=True, objects=False))
    paths = [str(HERE), str(HERE.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    for name in ("SPARK_HOME", "PYSPARK_SUBMIT_ARGS", "SPARK_LOCAL_DIRS", "SPARK_SUBMIT_OPTS"):
        env.pop(name, None)
    command = [sys.executable, "-c", CLUSTER, orders.store.url, orders.server.url]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [line for line in done.stdout.splitlines() if line.startswith("rows")]
    assert lines == [f"rows {len(expected)} {sum(row[0] for row in expected)}"] * 2
