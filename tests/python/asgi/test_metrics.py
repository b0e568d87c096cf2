"""Metrics of a live server: the families that there are, and that they count what was done."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.h2_client import Http2Port
from support.http_client import Http
from support.server import Server, opened
from support.sse import Events

from .test_routes import write

HISTOGRAMS = {f"topics_{name}_seconds" for name in ("fsync", "append", "delivery", "scheduling")}
SAMPLE = re.compile(
    r'((?:topics|process)_[a-z0-9_]+)(\{[a-z_]+="[^"]*"(?:,[a-z_]+="[^"]*")*\})? (\S+)'
)


def scraped(text: str) -> tuple[dict[str, str], dict[str, float]]:
    """The kind of each family, and the value of each series; each is there once."""
    kinds: dict[str, str] = {}
    values: dict[str, float] = {}
    helped: set[str] = set()
    for line in text.splitlines():
        if line.startswith("# HELP "):
            name = line.split(" ")[2]
            assert name not in helped, line
            helped.add(name)
        elif line.startswith("# TYPE "):
            _, _, name, kinds[name] = line.split(" ")
            assert name in helped, line
        else:
            found = SAMPLE.fullmatch(line)
            assert found is not None, line
            series = found[1] + (found[2] or "")
            assert series not in values, line
            values[series] = float(found[3])
            family = re.sub("_(bucket|sum|count)$", "", found[1])
            assert found[1] in kinds or kinds[family] == "histogram", line
    assert set(kinds) == helped
    return kinds, values


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[list[int]]:
    """The port of an empty server behind each protocol."""
    with contextlib.ExitStack() as stack:
        ports: list[int] = []
        for name, hot in (("plain", "0"), ("hot", "1"), ("h2", "1")):
            env = {"TOPICS_HOT_PROTOCOL": hot}
            port = stack.enter_context(opened(tmp_path / name, env)).port
            ports.append(Http2Port(port) if name == "h2" else port)
        yield ports


def test_what_is_done_is_counted(fresh: list[int]) -> None:
    for port in fresh:
        api = Http(port)
        before = scraped(api("GET", "/v0/metrics").body.decode())[1]
        for name, config in (("log", {"cap_records": 2}), ("jobs", {"type": "queue"})):
            assert api("PUT", f"/v0/topics/{name}", config).status == 201
        assert api("PUT", "/v0/topics/safe", {"durability": "fsync"}).status == 201
        write(api, "log", 1, 2, 3)
        write(api, "jobs", 1, 2)
        write(api, "safe", 1)
        assert api("POST", "/v0/topics/log/diff", {"from_seq": 0}).json["tombstone"]
        assert api("POST", "/v0/topics/jobs/claim", {"node": "w"}).json["count"] == 1
        assert api("PUT", "/v0/routers/r", {"source": "log", "dest": "copies"}).status == 201
        assert api("PUT", "/v0/topics/log/consumers/c", {}).status == 201
        wid = api("POST", "/v0/watch", {"topics": ["log"]}).json["wid"]
        with Events(port, f"/v0/watch/{wid}") as events:
            assert events.until("caught-up")
            write(api, "log", 4)
            assert events.values(1) == [4]
            reply = api("GET", "/v0/metrics", headers={"Accept": "text/plain"})
            told = api("GET", "/v0/metrics", headers={"Accept": "application/json"}).json
        assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
        kinds, values = scraped(reply.body.decode())
        now = {
            "topics_topics": 4,
            "topics_queues": 1,
            "topics_routers": 1,
            "topics_consumers": 1,
            "topics_ready": 1,
            "topics_recovery_progress_ratio": 1,
            "topics_queue_leases": 1,
            "topics_watch_streams": 1,
            "topics_watch_sessions": 1,
            "topics_read_only_shards": 0,
            "topics_topics_truncated": 0,
            'topics_topics_by_class{durability="fsync"}': 1,
            'topics_topics_by_class{durability="disk"}': 3,
            'topics_topic_head_seq{topic="log"}': 4,
            'topics_topic_earliest_seq{topic="log"}': 3,
            'topics_topic_records{topic="log"}': 2,
            'topics_queue_ready{topic="jobs"}': 1,
            'topics_queue_in_flight{topic="jobs"}': 1,
        }
        assert {name: values.get(name) for name in now} == now
        grown = {
            "topics_evicted_records_total": 2,
            "topics_claims_total": 1,
            'topics_tombstones_total{reason="cap"}': 1,
        }
        assert {name: values[name] - before[name] for name in grown} == grown
        at_least = {
            "topics_appends_total": 4,
            "topics_append_seconds_count": 4,
            "topics_fsync_seconds_count": 1,
            "topics_delivery_seconds_count": 1,
            "topics_scheduling_seconds_count": 1,
            "topics_wal_fsyncs_total": 1,
            "topics_wal_frames_total": 4,
            "topics_wal_batches_total": 4,
            "topics_wal_bytes_total": 1,
        }
        for name, least in at_least.items():
            assert values[name] - before[name] >= least, name
        assert {name for name, kind in kinds.items() if kind == "histogram"} >= HISTOGRAMS
        gauges = ("pressure_ratio", "ready_topics", "staged_batches", "live_records", "live_bytes")
        counters = ("wal_rotations", "throttled", "strains", "cold_reads")
        assert {f"topics_{name}" for name in gauges} <= kinds.keys()
        assert {f"topics_{name}_total" for name in counters} <= kinds.keys()
        for name in ("topics", "queues", "routers", "watch_streams", "appends", "claims"):
            counted = values.get(f"topics_{name}", values.get(f"topics_{name}_total"))
            assert told[name] == counted, name
        api.close()


def test_gauges_of_topics_have_an_end(protocols: dict[str, Server]) -> None:
    for server in protocols.values():
        api = Http(server.port)
        for n in range(1001):
            assert api("PUT", f"/v0/topics/many-{n}", {}).status in (200, 201)
        reply = api("GET", "/v0/metrics", headers={"Accept": "text/plain"})
        values = scraped(reply.body.decode())[1]
        of_topics = [name for name in values if name.startswith("topics_topic_head_seq{")]
        assert len(of_topics) == values["topics_topics_with_gauges"] == 1000
        assert values["topics_topics_truncated"] == 1
        told = api("GET", "/v0/metrics", headers={"Accept": "application/json"}).json
        assert told["per_topic_truncated"] is True
        api.close()
