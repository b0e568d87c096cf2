"""A real S3 server behind a proxy that is slow, cuts or swallows, and kills in an upload.

What is asserted does not depend on when a fault happens: writes go on, the state says what it is,
and afterwards the store has everything that was acked, whole.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import topics_engine as te
from support import cold
from support.cold import RECORDS, numbers
from support.gateway import Gateway
from support.server import Server
from support.toxiproxy import Toxiproxy
from support.waiting import until

pytestmark = pytest.mark.slow

EVERY = list(range(RECORDS))
SECONDS = 120
UPLOAD = 1 << 20
"""Bytes of an upload that is interrupted."""
PART = 64 << 10
"""An upload at least as large has begun by then."""


@pytest.fixture
def proxy(gateway: Gateway) -> Iterator[Toxiproxy]:
    with Toxiproxy(gateway.port) as running:
        yield running


def state(db: te.Database) -> str:
    return str(db.metrics()["remote_state"])


def is_shipped(db: te.Database) -> bool:
    metrics = db.metrics()
    return metrics["remote_state"] == "ok" and metrics["remote_lag_bytes"] == 0


def assert_restored(url: str, folder: Path, topic: str, expected: list[int]) -> None:
    """The prefix is whole, and a copy of it has these records."""
    found = te.verify(url, data=True)
    assert found, found.problems
    te.restore(url, folder, copy=True)
    with te.open(folder) as db:
        assert numbers(db.topic(topic).read(limit=None)) == expected


@pytest.mark.parametrize(
    ("kind", "attributes"), [("latency", {"latency": 200}), ("bandwidth", {"rate": 64})]
)
def test_a_slow_store(
    gateway: Gateway,
    proxy: Toxiproxy,
    data_dir: Path,
    tmp_path: Path,
    kind: str,
    attributes: dict[str, int],
) -> None:
    """200 ms for each answer, or 64 KB/s in both directions: all that is done is done later."""
    settings = cold.settings(gateway.url("p", proxy.port)) | {"cold_memory_bytes": 0}
    with ExitStack() as toxics, te.open(data_dir, **settings) as db:
        for stream in ("upstream", "downstream"):
            toxics.enter_context(proxy.toxic(kind, stream=stream, **attributes))
        cold.make_cold(db, step=1.0)
        assert numbers(db.topic("t").read(limit=None)) == EVERY
        assert db.metrics()["cold_reads"] >= 1
        until(lambda: is_shipped(db), SECONDS)
    assert_restored(gateway.url("p"), tmp_path / "copy", "t", EVERY)


@pytest.mark.parametrize(
    ("kind", "streams", "attributes"),
    [
        ("limit_data", ["downstream"], {"bytes": 20}),
        ("reset_peer", ["downstream"], {"timeout": 0}),
        ("timeout", ["upstream", "downstream"], {"timeout": 0}),
    ],
    ids=["cut answers", "reset connections", "black hole"],
)
def test_a_store_that_answers_nothing(
    gateway: Gateway,
    proxy: Toxiproxy,
    data_dir: Path,
    tmp_path: Path,
    kind: str,
    streams: list[str],
    attributes: dict[str, int],
) -> None:
    """Nothing but cold reads waits for it, and what was written meanwhile is shipped afterwards."""
    settings = cold.settings(gateway.url("p", proxy.port))
    settings |= {"cold_memory_bytes": 0, "cold_timeout_ms": 500}
    with te.open(data_dir, **settings) as db:
        cold.make_cold(db)
        until(lambda: is_shipped(db), SECONDS)
        with ExitStack() as toxics:
            for stream in streams:
                toxics.enter_context(proxy.toxic(kind, stream=stream, **attributes))
            for n in range(RECORDS, RECORDS + 20):
                db.topic("t").append({"n": n}, sync=True)
            db.checkpoint()
            with pytest.raises(te.Unavailable) as caught:
                numbers(db.topic("t").read(limit=None))
            assert caught.value.code == "cold_unavailable"
            until(lambda: state(db) == "failing", SECONDS)
            assert db.metrics()["remote_reason"]
            assert db.metrics()["remote_lag_bytes"] > 0
            assert numbers(db.topic("t").tail(3)) == [RECORDS + n for n in (17, 18, 19)]
        until(lambda: is_shipped(db), SECONDS)
        assert "remote_reason" not in db.metrics()
        assert numbers(db.topic("t").read(limit=None)) == list(range(RECORDS + 20))
    assert_restored(gateway.url("p"), tmp_path / "copy", "t", list(range(RECORDS + 20)))


@pytest.mark.parametrize("victim", ["the store", "the server"])
def test_a_kill_in_the_middle_of_an_upload(
    gateway: Gateway, proxy: Toxiproxy, data_dir: Path, tmp_path: Path, victim: str
) -> None:
    """SIGKILL while a part of an object has arrived: nothing that is published names it."""
    text = random.Random(7).randbytes(UPLOAD // 2).hex()
    parts = [text[at : at + 4096] for at in range(0, len(text), 4096)]
    url, settings = gateway.url("p"), cold.settings(gateway.url("p", proxy.port))
    server = Server(data_dir, **settings)
    try:
        server.start()
        with te.connect(server.url) as db:
            db.topic("t", durability="fsync").append({"n": 0})
            until(lambda: is_shipped(db), SECONDS)
            with proxy.toxic("bandwidth", stream="upstream", rate=100):
                db.topic("t").append([{"n": n, "text": part} for n, part in enumerate(parts, 1)])
                until(lambda: gateway.arriving() > PART, SECONDS)
                if victim == "the store":
                    gateway.kill()
                else:
                    server.kill()
        before = len(parts) + 1
        if victim == "the store":
            gateway.restart()
        else:
            server.start()
        assert te.verify(url, data=True)
        with te.connect(server.url) as db:
            db.topic("t").append({"n": before})
            until(lambda: is_shipped(db), SECONDS)
            assert numbers(db.topic("t").read(limit=None)) == list(range(before + 1))
        assert server.stop() == 0
    finally:
        server.ensure_dead()
    assert_restored(url, tmp_path / "copy", "t", list(range(before + 1)))
