"""A process that may have few file descriptors, or that has used them all for something else."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import topics_engine as te
from support.processes import LIMIT

# What the scripts have in common: `most` descriptors, a directory, and how many are open now.
BEGIN = """
import json, os, resource, sys, time
import topics_engine as te

data_dir, most = sys.argv[1], int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
SETTINGS = {
    "segment_max_events": 10, "wal_file_min": 65536, "wal_file_max": 65536,
    "checkpoint_bytes": 262144, "checkpoint_interval_ms": 50,
}
NAMES = [f"t{n}" for n in range(200)]

def value(name, n):
    return f"{name}.{n}." + "x" * 100

def held():
    return len(os.listdir("/proc/self/fd")) - 1

def data(db, name):
    return [r.data for r in db.topic(name).read(after=0)]
"""


def run(script: str, data_dir: Path, most: int) -> str:
    """What a script prints that runs in a process with so many descriptors."""
    program = [sys.executable, "-c", BEGIN + textwrap.dedent(script), str(data_dir), str(most)]
    done = subprocess.run(program, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("most", [128, 160, 256])
def test_few_descriptors_are_enough(data_dir: Path, most: int) -> None:
    script = """
    largest = 0
    for life in range(3):
        with te.open(data_dir, **SETTINGS) as db:
            for name in NAMES:
                db.topic(name).append([value(name, 25 * life + n) for n in range(25)], tag="a")
                largest = max(largest, held())
            db.checkpoint()
            for name in NAMES:
                assert data(db, name) == [value(name, n) for n in range(25 * (life + 1))]
                largest = max(largest, held())
            assert db.metrics()["checkpoint_failures"] == 0
    print(largest)
    """
    largest = int(run(script, data_dir, most))
    # Python has a handful open, the engine its half.
    assert largest < most / 2 + 20
    with te.open(data_dir) as db:
        assert sum(1 for _ in db.topics()) == 200


def test_the_setting_bounds_what_stays_open(data_dir: Path) -> None:
    script = """
    with te.open(data_dir, max_open_files=20, **SETTINGS) as db:
        assert db.settings["max_open_files"] == 20
        before = held()
        for name in NAMES:
            db.topic(name).append([value(name, n) for n in range(25)])
        # The second says that nothing of the log is needed.
        for _ in range(2):
            db.sync()
            db.checkpoint()
        for name in NAMES:
            assert len(data(db, name)) == 25
        # A checkpoint holds some for a while.
        until = time.monotonic() + 60
        while not 20 <= held() - before <= 20 + 4:
            assert time.monotonic() < until, (before, held())
            time.sleep(0.01)
    """
    run(script, data_dir, 4096)


def test_somebody_else_takes_them_all(data_dir: Path) -> None:
    script = """
    taken = []

    def take():
        try:
            while True:
                taken.append(os.open("/dev/null", os.O_RDONLY))
        except OSError:
            pass

    def refused(call):
        try:
            return call(), False
        except te.Unavailable as error:
            assert error.detail["reason"] == "no_descriptors", error.detail
            assert error.retryable and "ulimit -n" in str(error), error
            return None, True

    db = te.open(data_dir, **SETTINGS)
    acked = {name: [] for name in NAMES}
    for name in NAMES:
        acked[name] = [value(name, n) for n in range(25)]
        db.topic(name).append(acked[name])
    db.checkpoint()
    for life in range(3):
        writes = reads = 0
        for name in NAMES:
            # Also those that the engine has just given back.
            take()
            found, failed = refused(lambda: data(db, name))
            assert failed or found == acked[name], name
            reads += failed
            take()
            for n in range(20):
                new = value(name, f"{life}.{n}")
                _, failed = refused(lambda: db.topic(name).append([new]))
                if not failed:
                    acked[name].append(new)
                writes += failed
        take()
        _, failed = refused(db.checkpoint)
        assert writes and reads and failed, (writes, reads, failed)
        while taken:
            os.close(taken.pop())
        before = db.metrics()["checkpoints"]
        db.checkpoint()
        assert db.metrics()["checkpoints"] > before
        for name in NAMES:
            db.topic(name).append([value(name, life)])
            acked[name].append(value(name, life))
            assert data(db, name) == acked[name], name
    db.sync()
    print(json.dumps(acked))
    # Not closed: what is acked is there without it.
    sys.stdout.flush()
    os._exit(0)
    """
    acked = json.loads(run(script, data_dir, 256))
    with te.open(data_dir) as db:
        for name, values in acked.items():
            assert [r.data for r in db.topic(name).read(after=0)] == values
    assert not te.verify(data_dir).problems
