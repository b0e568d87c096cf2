"""A real server on a disk that fills up, and on one whose syncs fail."""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support import sync_filter
from support.gate import figure
from support.http_client import Http, Reply
from support.server import Server
from support.sync_filter import NUMBERS
from support.waiting import DEADLINE, until
from topics_engine.cli.exits import Exit

from .test_kill import read_all

ROUNDS = 20
DISK = 12 << 20
PAYLOAD = "x" * 4000
# Small files, so that a round is short; checkpoints give space back within it.
SMALL = {
    "TOPICS_CHECKPOINT_INTERVAL_MS": "50",
    "TOPICS_CHECKPOINT_BYTES": "262144",
    "TOPICS_SEGMENT_MAX_EVENTS": "100",
    "TOPICS_WAL_FILE_MIN": "65536",
    "TOPICS_WAL_FILE_MAX": "262144",
}


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs of a few MiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(disk)]
    try:
        subprocess.run(mount, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as refused:
        print(f"full disk: skipped, no tmpfs can be mounted here: {refused}")
        pytest.skip("no tmpfs")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


def retry_after(reply: Reply) -> int:
    headers = {name.lower(): value for name, value in reply.headers.items()}
    return int(headers["retry-after"])


def fill(api: Http, topic: str, acked: dict[int, str]) -> Reply:
    """Writes until the disk refuses; the refusal."""
    for n in range(20_000):
        value = f"{len(acked)}.{n}.{PAYLOAD}"
        reply = api("POST", f"/v0/topics/{topic}", {"records": [{"data": value}]})
        if reply.status not in (200, 201):
            return reply
        acked[reply.json["first_seq"]] = value
    raise AssertionError("the disk never fills up")


def goes_on(api: Http, topic: str, acked: dict[int, str]) -> float:
    """Seconds until a write is taken again: the engine looks for space now and then."""
    started = time.monotonic()

    def taken() -> bool:
        reply = api("POST", f"/v0/topics/{topic}", {"records": [{"data": "again"}]})
        if reply.status in (200, 201):
            acked[reply.json["first_seq"]] = "again"
            return True
        assert reply.code in ("storage_unavailable", "throttled"), reply
        return False

    until(taken, 2 * DEADLINE)
    return time.monotonic() - started


@pytest.mark.slow
def test_a_full_disk_refuses_reads_frees_and_goes_on(small_disk: Path) -> None:
    server = Server(small_disk / "data", env=SMALL)
    # What is acked and not deleted, by topic.
    kept: dict[str, dict[int, str]] = {"fsync": {}, "disk": {}}
    slowest = 0.0
    api = Http(0)
    try:
        server.start()
        api = Http(server.port)
        for topic in kept:
            assert api("PUT", f"/v0/topics/{topic}", {"durability": topic}).status == 201
        for n in range(ROUNDS):
            topic = list(kept)[n % 2]
            refused = fill(api, topic, kept[topic])
            assert (refused.status, refused.code) == (503, "storage_unavailable"), refused
            assert refused.json["error"]["detail"]["reason"] == "no_space", refused
            assert retry_after(refused) >= 1
            for name, acked in kept.items():
                assert dict(read_all(api, name, min(acked, default=1) - 1)) == acked
            for name, acked in kept.items():
                last = max(acked, default=0)
                freed = api("POST", f"/v0/topics/{name}/delete", {"before_seq": last})
                assert freed.status == 200, freed
                kept[name] = {seq: value for seq, value in acked.items() if seq >= last}
            for name, acked in kept.items():
                slowest = max(slowest, goes_on(api, name, acked))
        api.close()
        assert server.stop() == 0
        server.start()
        api = Http(server.port)
        for name, acked in kept.items():
            assert dict(read_all(api, name, min(acked) - 1)) == acked, name
        api.close()
        assert server.stop() == 0
    finally:
        api.close()
        server.ensure_dead()
    print(f"{ROUNDS} times full")
    figure("the slowest write after space came back", slowest, below=30, unit="s")


class Refusing(Server):
    """A server whose syncs fail from a signal on."""

    program = (str(Path(sync_filter.__file__).with_name("refuse_syncs.py")),)


@pytest.mark.skipif(platform.machine() not in NUMBERS, reason="no numbers of its system calls")
def test_a_failed_sync_is_unavailable_and_reads_go_on(tmp_path: Path) -> None:
    server = Refusing(tmp_path / "data", env={"TOPICS_IO_BACKEND": "posix"})
    record = {"records": [{"data": "a"}]}
    try:
        server.start()
        api = Http(server.port)
        assert api("PUT", "/v0/topics/safe", {"durability": "fsync"}).status == 201
        for _ in range(3):
            assert api("POST", "/v0/topics/safe", record).status == 200
        os.kill(server.pid, signal.SIGUSR1)
        until(lambda: api("POST", "/v0/topics/safe", record).status != 200)
        for _ in range(3):
            reply = api("POST", "/v0/topics/safe", record)
            # I10: it stays so, and says so.
            assert (reply.status, reply.code) == (503, "storage_unavailable"), reply
            assert reply.json["error"]["detail"]["reason"] == "poisoned", reply
            assert retry_after(reply) >= 1
        seqs = [seq for seq, _ in read_all(api, "safe", 0)]
        assert len(seqs) >= 3, "reads go on"
        api.close()
        assert server.stop() == Exit.FAILED, "it says that it could not close"
        # The next process, whose syncs work, has all that was acked.
        after = Server(tmp_path / "data", port=0)
        after.start()
        try:
            api = Http(after.port)
            again = [seq for seq, _ in read_all(api, "safe", 0)]
            assert again[: len(seqs)] == seqs, "I1"
            reply = api("POST", "/v0/topics/safe", record)
            assert reply.status == 200
            assert reply.json["first_seq"] > seqs[-1], "I2"
            api.close()
        finally:
            after.ensure_dead()
    finally:
        server.ensure_dead()
