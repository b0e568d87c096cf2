"""One Spark session and one server for all tests; each test has its own topic name.

The quick gate has the tests that need no JVM.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from local_spark import session
from pyspark_topics.client import Client
from pyspark_topics.compat import PUSHES_FILTERS
from pyspark_topics.options import Connection

from support.gate import GATE, fix_examples
from support.server import Server

from .proxy import Proxy
from .versions import NO_FILTERS, SPARK, run_to_end

os.environ.setdefault("TOPICS_SPARK_TIER", "1")

fix_examples()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out `slow` tests and those with a Spark session at the quick gate, unless a test is
    selected by name.
    """
    if GATE != "quick" or any("::" in argument for argument in config.args):
        return
    deselected = {item for item in items if "slow" in item.keywords or "spark" in fixtures_of(item)}
    config.hook.pytest_deselected(items=list(deselected))
    items[:] = [item for item in items if item not in deselected]


def fixtures_of(item: pytest.Item) -> list[str]:
    """The fixtures that a test uses, directly or not."""
    return getattr(item, "fixturenames", [])


class Topics:
    """The server, and direct calls to it."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.client = Client(Connection(server.url, None, None, 60.0))

    @property
    def url(self) -> str:
        return self.server.url

    def create(self, topic: str, **config: Any) -> int:
        return self.client.call("PUT", f"/v0/topics/{topic}", config)["topic_id"]

    def append(self, topic: str, rows: list[Any], **fields: Any) -> int:
        """Appends one record for each row; returns the last seq."""
        last = 0
        for at in range(0, len(rows), 10_000):
            records = [{"data": row, **fields} for row in rows[at : at + 10_000]]
            answer = self.client.call("POST", f"/v0/topics/{topic}", {"records": records})
            last = answer["last_seq"]
        return last

    def moment(self) -> int:
        """A time, ms, after earlier appends and before later ones."""
        time.sleep(0.02)  # sleep: record times are in ms
        at = int(time.time() * 1000)
        time.sleep(0.02)  # sleep: record times are in ms
        return at

    def drop(self, topic: str) -> None:
        self.client.call("DELETE", f"/v0/topics/{topic}")

    def rows(self, topic: str) -> list[dict[str, Any]]:
        """Every stored record."""
        found: list[dict[str, Any]] = []
        after: Any = "earliest"
        while True:
            body = {"from_seq": after, "limit": 1000, "include_tags": True}
            page = self.client.call("POST", f"/v0/topics/{topic}/diff", body)
            found += page["records"]
            after = page["next_from_seq"]
            if page["caught_up"]:
                return found

    def data(self, topic: str) -> list[Any]:
        return [row["data"] for row in self.rows(topic)]

    def state(self, topic: str) -> dict[str, Any]:
        return self.client.call("GET", f"/v0/topics/{topic}")


@pytest.fixture(scope="session")
def topics(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Topics]:
    with Server(tmp_path_factory.mktemp("server") / "data") as server:
        yield Topics(server)


@pytest.fixture
def proxy(topics: Topics) -> Iterator[Proxy]:
    proxy = Proxy(topics.server.port)
    yield proxy
    proxy.close()


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    streaming = "org.apache.spark.sql.execution.streaming"
    manager = "checkpointing.FileSystemBasedCheckpointFileManager"
    if SPARK < (4, 1):
        manager = manager.removeprefix("checkpointing.")
    spark = session(
        "tests",
        cores=2,
        failures=3,
        folder=tmp_path_factory.mktemp("spark"),
        spark__sql__shuffle__partitions="1",
        # Half the time of a micro-batch is spent on renaming checkpoint files and their checksums.
        spark__sql__streaming__checkpointFileManagerClass=f"{streaming}.{manager}",
    )
    yield spark
    spark.stop()


@pytest.fixture
def pushing(spark: Any) -> Iterator[None]:
    """A session with filter pushdown."""
    if not PUSHES_FILTERS:
        pytest.skip(NO_FILTERS)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    yield
    spark.conf.unset("spark.sql.python.filterPushdown.enabled")


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A name that no other test uses."""
    return request.node.name.replace("[", ".").replace("]", "").replace(" ", "-")[:120]


@pytest.fixture
def read(spark: Any, topics: Topics, topic: str) -> Callable[..., Any]:
    """A DataFrame of the test's topic."""

    def read(schema: str | None = None, **options: str) -> Any:
        reader = spark.read.format("topics").option("url", topics.url)
        if "subscribePattern" not in options:
            options.setdefault("subscribe", topic)
        if schema is not None:
            reader = reader.schema(schema)
        options.setdefault("retryTimeoutMs", "60000")
        return reader.options(**options).load()

    return read


class Stream:
    """A query from topics into a topic that can run repeatedly on its checkpoint."""

    def __init__(self, spark: Any, topics: Topics, source: str, sink: str, where: Path) -> None:
        self.spark, self.topics = spark, topics
        self.source, self.sink = source, sink
        self.checkpoint = where / f"checkpoint-{sink}"
        self.sink_options: dict[str, str] = {}

    def query(self, change: Callable[[Any], Any] | None = None, **options: str) -> Any:
        given = {"url": self.topics.url, "retryTimeoutMs": "60000", **options}
        if "subscribePattern" not in given:
            given.setdefault("subscribe", self.source)
        frame = self.spark.readStream.format("topics").options(**given).load()
        frame = frame.select("data") if change is None else change(frame)
        writer = frame.writeStream.format("topics").option("url", self.topics.url)
        writer = writer.options(topic=self.sink, **self.sink_options)
        writer = writer.option("checkpointLocation", str(self.checkpoint))
        return writer.trigger(availableNow=True).start()

    def run(self, change: Callable[[Any], Any] | None = None, **options: str) -> list[Any]:
        """Runs to the end of the available records; returns the progress of every batch with
        rows."""
        return run_to_end(lambda: self.query(change, **options), self.checkpoint)

    def offsets(self) -> dict[int, Any]:
        """The offsets of the planned batches."""
        found = {}
        for file in (self.checkpoint / "offsets").iterdir():
            if file.name.isdecimal():
                found[int(file.name)] = json.loads(file.read_text().splitlines()[-1])
        return found

    def forget_commit(self, batch: int) -> None:
        """Simulates a crash of Spark before it recorded that a batch was done."""
        folder = self.checkpoint / "commits"
        (folder / str(batch)).unlink()
        (folder / f".{batch}.crc").unlink(missing_ok=True)


@pytest.fixture
def stream(spark: Any, topics: Topics, topic: str, tmp_path: Path) -> Stream:
    return Stream(spark, topics, topic, f"{topic}.out", tmp_path)
