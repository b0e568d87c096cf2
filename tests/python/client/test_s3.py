"""Cold records in S3: a real server, versitygw."""

from __future__ import annotations

from pathlib import Path

import pytest

import topics_engine as te
from support import cold
from support.cold import RECORDS, numbers
from support.gateway import Gateway
from support.ports import free_port
from topics_engine import testing


@pytest.mark.slow
def test_records_are_archived_and_read_back(gateway: Gateway, data_dir: Path) -> None:
    settings = cold.settings(gateway.url("a/prefix"))
    every = list(range(RECORDS))
    with te.open(data_dir, **settings) as db:
        cold.make_cold(db)
        assert numbers(db.topic("t").read(limit=None)) == every
        assert db.metrics()["cold_reads"] >= 1
    kinds = {key.rpartition("/")[2][0] for key in gateway.files("a/prefix")}
    assert kinds == {"H", "b", "p", "r"}, "HEAD, bases, packs, rounds"
    with testing.Server(data_dir, **settings) as server, te.connect(server.url) as db:
        assert numbers(db.topic("t").read(limit=None)) == every


@pytest.mark.slow
def test_without_its_server_writes_go_on_and_cold_reads_wait(
    gateway: Gateway, data_dir: Path
) -> None:
    settings = cold.settings(gateway.url("p")) | {"cold_timeout_ms": 300}
    with te.open(data_dir, **settings) as db:
        cold.make_cold(db)
        gateway.kill()
        db.topic("t").append({"n": RECORDS}, sync=True)
        assert numbers(db.topic("t").tail(1)) == [RECORDS]
        with pytest.raises(te.Unavailable, match="object store") as caught:
            list(db.topic("t").read(limit=None))
        assert caught.value.code == "cold_unavailable"
        gateway.restart()
        assert numbers(db.topic("t").read(limit=None)) == list(range(RECORDS + 1))


def test_an_open_makes_no_request(credentials: None, data_dir: Path) -> None:
    url = f"s3://bucket/p?endpoint=http://127.0.0.1:{free_port()}&region=eu-west-1"
    with te.open(data_dir, remote_url=url) as db:
        db.topic("t").append(1, sync=True)
        assert db.topic("t").state().count == 1
