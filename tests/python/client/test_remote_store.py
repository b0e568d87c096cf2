"""An engine whose older segments are in a folder that stands for an object store."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import textwrap
from pathlib import Path

import pytest

import topics_engine as te
from support import cold
from support.cold import RECORDS, numbers
from support.processes import LIMIT, child, until_all_wait
from support.waiting import until
from topics_engine import testing


def settings(tmp_path: Path) -> te.Settings:
    return cold.settings(f"file://{tmp_path}/remote")


def make_cold(data_dir: Path, tmp_path: Path) -> None:
    with te.open(data_dir, **settings(tmp_path)) as db:
        cold.make_cold(db)


def test_readers_read_cold_records(data_dir: Path, tmp_path: Path) -> None:
    make_cold(data_dir, tmp_path)
    every = list(range(RECORDS))
    with te.open(data_dir, **settings(tmp_path)) as db:
        topic = db.topic("t")
        assert numbers(topic.read(limit=None)) == every
        assert numbers(topic.consumer("c").read(max_records=5)) == every[:5]
        metrics = db.metrics()
        assert metrics["cold_reads"] >= 1
        assert metrics["packs"] >= 1
    with te.open(data_dir, read_only=True, **settings(tmp_path)) as db:
        assert numbers(db.topic("t").read(limit=None)) == every


def test_an_event_loop_reads_cold_records(data_dir: Path, tmp_path: Path) -> None:
    make_cold(data_dir, tmp_path)

    async def consume() -> list[int]:
        out: list[int] = []
        async with te.aio.open(data_dir, **settings(tmp_path)) as db:
            consumer = await db.topic("t").consumer("c")
            while len(out) < RECORDS:
                out += numbers(await consumer.read(max_records=7))
        return out

    assert asyncio.run(asyncio.wait_for(consume(), LIMIT)) == list(range(RECORDS))


def test_a_server_reads_cold_records(data_dir: Path, tmp_path: Path) -> None:
    make_cold(data_dir, tmp_path)
    with testing.Server(data_dir, **settings(tmp_path)) as server, te.connect(server.url) as db:
        assert numbers(db.topic("t").read(limit=None)) == list(range(RECORDS))


def test_without_its_remote_cold_records_are_unavailable(data_dir: Path, tmp_path: Path) -> None:
    make_cold(data_dir, tmp_path)
    with te.open(data_dir) as db:
        with pytest.raises(te.Unavailable, match="no remote is set") as caught:
            list(db.topic("t").read())
        assert caught.value.code == "cold_unavailable"
        assert caught.value.retryable


@pytest.mark.parametrize(
    "url",
    [
        "gs://bucket/prefix",
        "s3://",
        "s3://bucket//prefix",
        "s3://bucket/prefix?port=1",
        "s3://bucket/prefix?endpoint=localhost",
        "file://relative",
        "file:///",
        "/dir",
        "file://host/dir",
        "file:///dir?x",
        "file:///dir#x",
        "file:///a%00b",
    ],
)
def test_a_remote_of_another_kind_is_refused(data_dir: Path, url: str) -> None:
    with pytest.raises(te.InvalidRequest, match=r"remote_url m(ust|ay)"):
        te.open(data_dir, remote_url=url)


@pytest.mark.parametrize("host", ["", "localhost"])
def test_a_remote_url_is_percent_decoded(data_dir: Path, tmp_path: Path, host: str) -> None:
    folder = tmp_path / "my archive, 100% ü#?"
    with te.open(data_dir, remote_url=folder.as_uri().replace("file://", f"file://{host}")):
        assert [p for p in tmp_path.iterdir() if p != data_dir] == [folder]


def test_a_remote_without_its_parent_directory_is_refused(data_dir: Path, tmp_path: Path) -> None:
    missing = tmp_path / "not-mounted" / "archive"
    with pytest.raises(te.InvalidRequest, match=f"the parent directory of {missing} is missing"):
        te.open(data_dir, remote_url=missing.as_uri())


HUNG_READS = {
    "topic": "list(t.read())",
    "consumer": "t.consumer('c').read()",
}


@pytest.mark.parametrize("read", HUNG_READS)
def test_ctrl_c_is_heard_while_the_store_hangs(data_dir: Path, tmp_path: Path, read: str) -> None:
    make_cold(data_dir, tmp_path)
    for pack in cold.packs(tmp_path / "remote"):
        pack.unlink()
        # Opening it waits for a writer.
        os.mkfifo(pack)
    code = f"""
        import json, signal, sys, topics_engine as te
        # A process that was started in the background inherits it as ignored.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        with te.open(sys.argv[1], **json.loads(sys.argv[2])) as db:
            t = db.topic("t")
            try:
                print("waiting", flush=True)
                {HUNG_READS[read]}
            except KeyboardInterrupt:
                print("interrupted")
    """
    options = json.dumps({**settings(tmp_path), "cold_timeout_ms": 600_000})
    command = [sys.executable, "-c", textwrap.dedent(code), str(data_dir), options]
    with child(command) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "waiting\n"
        # Before the wait has begun the interpreter raises it: either way it is heard.
        until_all_wait(process.pid)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=LIMIT)
        assert (process.returncode, out) == (0, "interrupted\n")


def threads() -> set[str]:
    return {p.read_text().strip() for p in Path("/proc/self/task").glob("*/comm")}


def wait_for_thread(name: str) -> None:
    # A thread has its name when it first runs.
    until(lambda: name in threads(), 60)


def test_without_a_remote_there_is_no_thread(data_dir: Path, tmp_path: Path) -> None:
    with te.open(data_dir, **settings(tmp_path)) as db:
        db.topic("t").append(1)
        wait_for_thread("topics-archive")

    def of_remotes() -> set[str]:
        names = ("topics-archive", "topics-cold", "topics-remote", "topics-request")
        return {n for n in threads() if n.startswith(names)}

    # Those of an engine that was closed end by themselves.
    until(lambda: not of_remotes(), 60)
    with te.open(data_dir) as db:
        db.topic("t").append(1)
        wait_for_thread("topics-maintain")
        assert not of_remotes()


def test_requests_are_counted(data_dir: Path, tmp_path: Path) -> None:
    make_cold(data_dir, tmp_path)
    with te.open(data_dir, **settings(tmp_path)) as db:
        before = db.metrics()
        assert numbers(db.topic("t").read(limit=None)) == list(range(RECORDS))
        after = db.metrics()
        gets = after["remote_requests"]["get"]
        assert gets["ok"] - before["remote_requests"]["get"].get("ok", 0) >= after["cold_reads"] > 0
        assert gets["p99_ns"] > 0
        assert after["remote_bytes"]["received"] > before["remote_bytes"]["received"]
        assert after["pack_bytes"] > 0
        assert after["remote_dead_objects"] >= 0
        assert after["remote_deleted"] >= 0
        assert after["remote_state"] in ("starting", "ok"), "nothing was to be written"
        text = db._backend.metrics(json=False).decode()
        assert 'topics_remote_requests_total{op="get",outcome="ok"}' in text
    with te.open(tmp_path / "other") as db:
        assert "remote_requests" not in db.metrics()
        assert "topics_remote" not in db._backend.metrics(json=False).decode()


def test_what_waits_for_a_pack_is_measured(data_dir: Path, tmp_path: Path) -> None:
    waiting = settings(tmp_path) | {"pack_bytes": 1 << 20}
    # The folder of its first epoch.
    blocked = tmp_path / "remote" / f"{1:016x}"
    with te.open(data_dir, **waiting) as db:
        # Its folder cannot be made: every upload fails.
        blocked.write_text("")
        for i in range(30):
            db.topic("t").append({"n": i})
            if i % 10 == 9:
                db.checkpoint()
        until(lambda: db.metrics()["archive_lag_seconds"] > 0.2, 60)
        assert db.metrics()["archive_lag_bytes"] > 0
        blocked.unlink()
        until(lambda: db.metrics()["archive_lag_bytes"] == 0, 60)
        assert db.metrics()["archive_lag_seconds"] == 0
        # One, unless the first pass after the fault had begun before the last checkpoint.
        assert db.metrics()["packs"] >= 1
