"""The pipeline: its feed, its kill, its comparison; and a run over a few days."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pandas as pd
import pytest
from pipeline.__main__ import compare
from pipeline.dataset import dataset
from pipeline.feed import Feed
from pipeline.job import DEAD, RESULTS
from pipeline.progress import Progress, progress
from pipeline.report import PLOT
from pipeline.runner import HERE, Job, KillPoint

LANDED = KillPoint(Progress(committed=6, planned=7, rows=450), fed=600, total=1000, published=9)


def run(*args: str) -> subprocess.CompletedProcess[str]:
    """Runs a program as the Makefile starts it."""
    env = {**os.environ, "PYTHONPATH": "..:../tests"}
    command = [sys.executable, "-m", *args]
    return subprocess.run(command, cwd=HERE, env=env, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize("program", ["pipeline", "bench"])
def test_programs_start_as_the_makefile_starts_them(program):
    told = run(program, "--help")
    assert (told.returncode, told.stderr) == (0, "")
    assert f"python -m {program}" in told.stdout
    rules = (HERE.parent / "Makefile").read_text()
    assert "IN_SPARK = cd spark && PYTHONPATH=..:../tests " in rules
    assert f"$(IN_SPARK) -m {program} " in rules


@pytest.mark.slow
def test_a_fortnight_from_the_feed_to_the_plot(tmp_path):
    told = run("pipeline", "--days", "14", "--output", str(tmp_path))
    assert told.returncode == 0, told.stdout + told.stderr
    assert "killed in batch" in told.stdout
    assert "equal to pandas" in told.stdout
    assert (tmp_path / PLOT).read_bytes().startswith(b"\x89PNG")
    assert len(pd.read_parquet(tmp_path / f"{RESULTS}.parquet")) > 500


@pytest.mark.parametrize(
    ("change", "middle"),
    [
        ({}, True),
        ({"query": Progress(6, 7, 299)}, False),
        ({"query": Progress(6, 7, 701)}, False),
        ({"query": Progress(6, 6, 450)}, False),
        ({"fed": 1000}, False),
        ({"published": 0}, False),
    ],
)
def test_the_middle_is_while_both_are_under_way(change, middle):
    landed = replace(LANDED, **change)
    assert landed.in_the_middle is middle
    assert f"{landed.query.rows} rows processed" in str(landed)


def test_progress_is_what_committed_batches_cover(tmp_path):
    def note(log, batch, *lines):
        (tmp_path / log).mkdir(exist_ok=True)
        (tmp_path / log / str(batch)).write_text("\n".join(["v1", *lines]))
        (tmp_path / log / f".{batch}.crc").touch()

    def at(**ends):
        return [json.dumps({"v": 1, "t": {name: [1, 1, end]}}) for name, end in ends.items()]

    assert progress(tmp_path) == Progress(-1, -1, 0)
    note("offsets", 0, "{}", *at(flights=11), "-")
    assert progress(tmp_path) == Progress(-1, 0, 0)
    assert progress(tmp_path).busy
    note("commits", 0, "{}")
    assert progress(tmp_path) == Progress(0, 0, 10)
    assert not progress(tmp_path).busy
    note("offsets", 1, "{}", *at(flights=21, weather=6))
    assert progress(tmp_path) == Progress(0, 1, 10)
    note("commits", 1, "{}")
    assert progress(tmp_path) == Progress(1, 1, 25)


def test_the_feed_waits_for_the_job(topics, topic):
    flights = dataset(days=10)["flights"]
    lead, processed, rests = 1500, 0, 0
    # A simulated day starts at the time of the first row.
    first = flights[0].arrives
    day = max(Counter((row.arrives - first) // timedelta(days=1) for row in flights).values())
    feed = Feed(topics.url, {topic: flights}, lambda: processed, lead)
    feed.start()
    until = time.monotonic() + 60
    while feed.is_alive():
        assert time.monotonic() < until
        if feed.fed - processed > lead:
            # It waits until more rows are processed.
            assert feed.fed - processed <= lead + day
            processed = feed.fed
            rests += 1
    assert feed.error is None
    assert topics.state(topic)["count"] == feed.fed == len(flights)
    assert rests >= 3


def alive(stat: Path) -> bool:
    """Whether a process runs: false if it has exited, even if its new parent has not reaped it."""
    try:
        return stat.read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_a_kill_reaches_what_left_the_group(tmp_path, monkeypatch):
    """Spark's workers leave the group: their daemon starts with `setpgid`."""
    program = tmp_path / "pipeline" / "job.py"
    program.parent.mkdir()
    (program.parent / "__init__.py").touch()
    program.write_text(
        "import os, sys, time\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    os.setpgid(0, 0)\n"
        "    open(sys.argv[2] + '/child', 'w').write(str(os.getpid()))\n"
        "time.sleep(600)\n"
    )
    monkeypatch.setattr("pipeline.runner.HERE", tmp_path)
    with Job("http://h:1", tmp_path, {}) as job:
        noted = tmp_path / "child"
        while not (noted.exists() and noted.read_text()):
            job.check()
        job.kill()
    stat = Path(f"/proc/{noted.read_text()}/stat")
    until = time.monotonic() + 20
    while alive(stat):
        assert time.monotonic() < until, "the process was not killed"
        time.sleep(0.01)
    with pytest.raises(SystemExit, match=f"{-signal.SIGKILL}"):
        job.check()


def test_what_differs_is_told(tmp_path):
    hours = pd.DataFrame(
        {"origin": ["A", "B"], "hour": ["x", "y"], "flights": [1, 2], "delay_sum": [0.0, 3.5]}
    )
    dead = [("late", "flights", 3)]
    letters = pd.DataFrame(dead, columns=["reason", "topic", "seq"]).assign(data="{}")
    (tmp_path / PLOT).write_bytes(b"png")

    def judge(found: pd.DataFrame, letters: pd.DataFrame) -> list[str]:
        found.to_parquet(tmp_path / f"{RESULTS}.parquet")
        letters.to_parquet(tmp_path / f"{DEAD}.parquet")
        return compare(tmp_path, hours, dead)

    assert judge(hours, letters) == []
    assert len(judge(hours.assign(flights=[1, 3]), letters)) == 1
    assert len(judge(hours[:1], letters)) == 1
    twice = judge(pd.concat([hours, hours[:1]]), letters)
    assert twice[0] == "an hour of an airport is there twice"
    assert "dead letters" in judge(hours, letters.assign(seq=4))[0]
    (tmp_path / PLOT).write_bytes(b"")
    assert judge(hours, letters) == ["the plot is empty"]
