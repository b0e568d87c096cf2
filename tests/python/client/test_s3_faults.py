"""A store that fails: cut answers, a black hole, a killed server, lost and wrong answers."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import topics_engine as te
from support import cold
from support.cold import RECORDS, numbers
from support.faulty_s3 import FaultyS3
from support.faulty_server import Lose, Refuse
from support.gateway import Gateway
from support.toxiproxy import Toxiproxy
from support.waiting import until
from topics_engine import _core

pytestmark = pytest.mark.slow


EVERY = list(range(RECORDS))
FRESH = {"cold_memory_bytes": 0}
"""Cold records are fetched at every read."""


@pytest.fixture
def toxiproxy(gateway: Gateway) -> Iterator[Toxiproxy]:
    with Toxiproxy(gateway.port) as running:
        yield running


@pytest.fixture
def proxy(gateway: Gateway) -> Iterator[FaultyS3]:
    """In front of the gateway."""
    running = FaultyS3(gateway.port)
    yield running
    running.close()


def read_all(db: te.Database) -> list[int]:
    """The records, read again while the store is not available."""
    deadline = time.monotonic() + 60
    while True:
        try:
            return numbers(db.topic("t").read(limit=None))
        except te.Unavailable as failure:
            if failure.code != "cold_unavailable" or time.monotonic() > deadline:
                raise


def verified(url: str) -> bool:
    """Whether everything is whole that the newest base names."""
    found = json.loads(_core.verify_remote(url, data=True))
    return found is not None and bool(found["ok"])


@pytest.mark.explore
@pytest.mark.parametrize("toxic", ["limit_data", "reset_peer"])
def test_cut_answers(gateway: Gateway, toxiproxy: Toxiproxy, data_dir: Path, toxic: str) -> None:
    """Some connections break after some bytes of their answers."""
    attributes = {"limit_data": {"bytes": 700}, "reset_peer": {"timeout": 5}}[toxic]
    settings = cold.settings(gateway.url("p", toxiproxy.port)) | FRESH
    settings |= {"remote_single_writer": True}
    with te.open(data_dir, **settings) as db:
        # A pass that fails is repeated after a while, which doubles.
        with toxiproxy.toxic(toxic, toxicity=0.05, **attributes):
            cold.make_cold(db)
        with toxiproxy.toxic(toxic, toxicity=0.3, **attributes):
            for _ in range(5):
                assert read_all(db) == EVERY
        assert read_all(db) == EVERY
    assert verified(gateway.url("p"))


@pytest.mark.explore
def test_a_black_hole_delays_no_write(
    gateway: Gateway, toxiproxy: Toxiproxy, data_dir: Path
) -> None:
    settings = cold.settings(gateway.url("p", toxiproxy.port)) | FRESH
    settings |= {"cold_timeout_ms": 500}
    with te.open(data_dir, **settings) as db:
        cold.make_cold(db)
        with (
            toxiproxy.toxic("timeout", timeout=0),
            toxiproxy.toxic("timeout", stream="upstream", timeout=0),
        ):
            with pytest.raises(te.Unavailable) as caught:
                numbers(db.topic("t").read(limit=None))
            assert caught.value.code == "cold_unavailable"
            worst = 0.0
            for i in range(200):
                began = time.monotonic()
                db.topic("w").append({"n": i}, sync=True)
                worst = max(worst, time.monotonic() - began)
            db.checkpoint()
            print(f"slowest of 200 synced writes beside a black hole: {worst * 1e3:.0f} ms")
            assert len(numbers(db.topic("w").tail(200))) == 200
        assert read_all(db) == EVERY


@pytest.mark.explore
def test_a_gateway_that_is_killed_in_an_upload(gateway: Gateway, data_dir: Path) -> None:
    """kill -9 again and again while packs are uploaded: everything that is published is whole."""
    settings = cold.settings(gateway.url("p")) | FRESH
    over = threading.Event()

    def kill() -> None:
        while not over.wait(0.3):
            gateway.restart()

    with te.open(data_dir, **settings) as db:
        killer = threading.Thread(target=kill, daemon=True)
        killer.start()
        try:
            for i in range(RECORDS):
                db.topic("t").append({"n": i})
                db.topic("big").append({"text": "x" * 20_000})
                if i % 5 == 4:
                    db.checkpoint()
                    over.wait(0.1)
        finally:
            over.set()
            killer.join(60)
        gateway.restart()
        cold.wait_until_cold(db)
        assert read_all(db) == EVERY
    assert verified(gateway.url("p"))


def is_idle(proxy: FaultyS3, seconds: float) -> bool:
    before = proxy.counts.copy()
    time.sleep(seconds)  # sleep: no request is sent meanwhile
    return proxy.counts == before


def test_lost_and_refused_answers(gateway: Gateway, proxy: FaultyS3, data_dir: Path) -> None:
    """Each answer to an upload is lost after the upload, or the server refuses it at first."""
    settings = cold.settings(gateway.url("p", proxy.port)) | FRESH
    proxy.fail(Lose(), Lose(), Refuse(503), Refuse(409), Lose(), Refuse(500), matching="PUT ")
    with te.open(data_dir, **settings) as db:
        cold.make_cold(db)
        assert not proxy.faults, "every fault happened"
        assert read_all(db) == EVERY
        # An idle engine makes no request.
        until(lambda: is_idle(proxy, 1.5), 120)
    print(f"requests: {dict(proxy.counts)}")
    assert verified(gateway.url("p"))


@pytest.mark.explore
def test_wrong_bytes_are_a_gap_and_never_a_record(
    gateway: Gateway, proxy: FaultyS3, data_dir: Path
) -> None:
    settings = cold.settings(gateway.url("p", proxy.port)) | FRESH
    with te.open(data_dir, **settings) as db:
        cold.make_cold(db)
        proxy.wrong = True
        seen = list(db.topic("t").read(limit=None))
        read = numbers(seen)
        lost = [r for r in seen if isinstance(r, te.Gap)]
        assert set(read) < set(EVERY), "a changed byte is found"
        assert {gap.reason for gap in lost} == {"corrupt"}
        assert len(read) + sum(gap.last - gap.first + 1 for gap in lost) == RECORDS
        proxy.wrong = False
        until(lambda: numbers(db.topic("t").read(limit=None)) == EVERY, 60)
