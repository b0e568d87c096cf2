"""The pipeline: its feed, its kill, its comparison; and a run over a few days."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter, deque
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest
from pipeline.__main__ import LAST_KILL, TRIGGERS, compare
from pipeline.archive import archive, bytes_fetched, settings
from pipeline.dataset import END, dataset, first_year
from pipeline.feed import Feed
from pipeline.job import DEAD, RESULTS, Restarted
from pipeline.progress import Progress, progress
from pipeline.report import PLOT
from pipeline.runner import HERE, Job, KillPoint, PlannedKill, package, planned_kills
from pyspark.errors import StreamingQueryException
from pyspark_topics.client import ARROW, Client
from pyspark_topics.options import Connection

from support.server import Server
from support.waiting import until

FEEDING = KillPoint("feeding", Progress(committed=6, planned=7, rows=450), 600, 1000, 9)
PROCESSING = KillPoint("processing", Progress(committed=13, planned=14, rows=900), 1000, 1000, 9)


def run(*args: str) -> subprocess.CompletedProcess[str]:
    """Runs a program as the Makefile starts it."""
    env = {**os.environ, "PYTHONPATH": "..:../tests"}
    command = [sys.executable, "-m", *args]
    return subprocess.run(command, cwd=HERE, env=env, capture_output=True, text=True, timeout=1200)


@pytest.mark.parametrize("program", ["pipeline", "lake", "bench"])
def test_programs_start_as_the_makefile_starts_them(program):
    told = run(program, "--help")
    assert (told.returncode, told.stderr) == (0, "")
    assert f"python -m {program}" in told.stdout
    rules = (HERE.parent / "Makefile").read_text()
    assert "IN_SPARK = cd spark && PYTHONPATH=..:../tests " in rules
    assert f"$(IN_SPARK) -m {program} " in rules


@pytest.mark.slow
def test_a_fortnight_from_the_feed_to_the_plot(tmp_path):
    told = run("pipeline", "--days", "14", "--seed", "7", "--output", str(tmp_path))
    assert told.returncode == 0, told.stdout + told.stderr
    assert "12000 of 12208 archived rows of flights are cold" in told.stdout
    for victim in ("driver", "server", "worker"):
        assert f"{victim} killed in feeding" in told.stdout
    assert "driver killed in processing" in told.stdout
    assert "equal to pandas" in told.stdout
    assert (tmp_path / PLOT).read_bytes().startswith(b"\x89PNG")
    assert len(pd.read_parquet(tmp_path / f"{RESULTS}.parquet")) > 500


@pytest.mark.slow
def test_two_days_on_a_cluster(tmp_path):
    """Its executors have the package from `--py-files` alone."""
    told = run(
        *("pipeline", "--days", "2", "--seed", "7", "--output", str(tmp_path)),
        *("--master", "local-cluster[2,1,1024]"),
    )
    assert told.returncode == 0, told.stdout + told.stderr
    for victim in ("driver", "server", "executor", "worker"):
        assert f"{victim} killed in feeding" in told.stdout
    assert "equal to pandas" in told.stdout


def test_the_archive_is_a_year_and_the_rest_arrives_later():
    once, again = dataset(4), dataset(4, again=2)
    archived = first_year(again)
    for topic, rows in again.items():
        count = archived[topic]
        assert rows[:count] == once[topic][:-1], topic
        assert rows[-1] == once[topic][-1]
        assert (rows[-1].number, rows[-1].arrives) == (-1, END)
        later = rows[count:-1]
        days = {json.loads(row.text)["hour"][:10] for row in later if "hour" in row.text}
        assert {day for day in days if day[:4] == "2014"} == {
            "2014-01-01",
            "2014-01-02",
            "2014-01-03",
        }
        assert 0.4 < len(later) / count < 0.6
        assert len({row.number for row in rows}) == len(rows)


def test_archived_records_are_in_the_store_alone(tmp_path):
    rows = dataset(2, again=1)
    archived = first_year(rows)
    configured = settings(tmp_path / "store", archived)
    with Server(tmp_path / "data", **configured) as server:
        client = Client(Connection(server.url, None, None, 60.0))
        cold = archive(server, client, rows, archived)
        size = configured["segment_max_events"]
        # One full segment stays on the disk.
        assert cold == {topic: count // size * size - size for topic, count in archived.items()}
        assert min(cold.values()) / min(archived.values()) > 0.7
        assert bytes_fetched(client) == 0
        with client.open("POST", "/v0/topics/flights/scan", b"{}", accept=ARROW) as answer:
            found = pa.ipc.open_stream(answer.read()).read_all()
        assert found["seq"].to_pylist() == [*range(1, archived["flights"] + 1)]
        assert [json.loads(text) for text in found["data"].to_pylist()] == [
            json.loads(row.text) for row in rows["flights"][: archived["flights"]]
        ]
        assert bytes_fetched(client) > 0


def test_the_package_for_a_cluster_is_the_one_of_the_wheel(tmp_path):
    code = "import pyspark_topics; print(pyspark_topics.__file__, pyspark_topics.DefaultSource)"
    zipped = package(tmp_path)
    command = [sys.executable, "-c", code]
    env = {**os.environ, "PYTHONPATH": str(zipped)}
    done = subprocess.run(
        command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300
    )
    assert done.stdout.startswith(f"{zipped}/pyspark_topics/__init__.py <class"), done.stderr


@pytest.mark.parametrize(
    ("point", "change", "in_time"),
    [
        (FEEDING, {}, True),
        (FEEDING, {"query": Progress(6, 6, 450)}, True),
        (FEEDING, {"query": Progress(-1, 0, 0)}, False),
        (FEEDING, {"begun": 5}, True),
        (FEEDING, {"begun": 6}, False),
        (FEEDING, {"fed": 1000}, False),
        (FEEDING, {"published": 0}, False),
        (PROCESSING, {}, True),
        (PROCESSING, {"fed": 999}, False),
        (PROCESSING, {"query": Progress(14, 14, 1000)}, False),
        (PROCESSING, {"begun": 13}, False),
    ],
)
def test_a_kill_is_in_its_phase(point, change, in_time):
    found = replace(point, **change)
    assert found.in_time is in_time
    assert f"{found.query.rows} rows processed" in str(found)


def test_kills_are_random_and_repeatable():
    plans = [planned_kills(seed) for seed in range(200)]
    assert plans == [planned_kills(seed) for seed in range(200)]
    assert len({tuple(plan) for plan in plans}) == 200
    for plan in plans:
        *feeding, last = plan
        assert [kill.phase for kill in feeding] in (["feeding"], ["feeding"] * 2)
        assert last.phase == "processing"
        assert all(0.1 <= kill.share <= 0.7 for kill in feeding)
        assert [kill.share for kill in feeding] == sorted(kill.share for kill in feeding)


def test_everything_is_killed_once_and_the_driver_up_to_three_times():
    others = ["server", "executor", "worker"]
    orders = set()
    for seed in range(200):
        plan = planned_kills(seed, others, LAST_KILL)
        victims = tuple(kill.victim for kill in plan)
        assert sorted(v for v in victims if v != "driver") == sorted(others)
        assert victims.count("driver") in (2, 3)
        assert (plan[-1].phase, plan[-1].victim) == ("processing", "driver")
        # The last one of the feed hits the live rows, which are its last third.
        assert 2 / 3 < plan[-2].share <= LAST_KILL
        orders.add(victims)
    assert len(orders) > 50


def killed_at(plan: list[PlannedKill], triggers: int) -> list[tuple[int, int]]:
    """For each kill: the last committed batch at the kill before, and at this one, if every delay
    lasts until a further batch is committed. A start does nothing but the next batch."""
    begun, batch, found = -1, -1, []
    for kill in plan:
        while not kill.is_due(
            Progress(batch, batch, batch + 1), begun, triggers, batch + 1 < triggers - 2
        ):
            batch += 1
        batch += 1
        found.append((begun, batch))
        begun = batch
    return found


@pytest.mark.parametrize(
    ("others", "last", "triggers"),
    [([], 0.7, 15), (["server", "worker"], LAST_KILL, TRIGGERS)],
    ids=["lake", "pipeline"],
)
def test_there_is_a_batch_before_each_kill_and_rows_after_the_last(others, last, triggers):
    for seed in range(500):
        plan = planned_kills(seed, others, last)
        for kill, (begun, batch) in zip(plan, killed_at(plan, triggers), strict=True):
            assert batch > begun, (seed, kill)
            # All rows are fed when those of two batches are left.
            assert batch + 1 < (triggers if kill.phase == "processing" else triggers - 1), (
                seed,
                kill,
            )


@pytest.mark.parametrize(
    ("kill", "query", "begun", "is_feeding", "is_due"),
    [
        (PlannedKill("feeding", 0.3, 1.0), Progress(3, 4, 300), 2, True, True),
        (PlannedKill("feeding", 0.3, 1.0), Progress(3, 4, 299), 2, True, False),
        (PlannedKill("feeding", 0.3, 1.0), Progress(3, 4, 300), 3, True, False),
        (PlannedKill("feeding", 0.0, 1.0), Progress(-1, 0, 0), -1, True, False),
        (PlannedKill("processing", 0.0, 1.0), Progress(9, 9, 900), 8, False, True),
        (PlannedKill("processing", 0.0, 1.0), Progress(9, 9, 900), 8, True, False),
        (PlannedKill("processing", 0.0, 1.0), Progress(9, 9, 900), 9, False, False),
    ],
)
def test_a_kill_is_due_when_the_run_has_committed_a_batch(kill, query, begun, is_feeding, is_due):
    assert kill.is_due(query, begun, 1000, is_feeding) is is_due


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


class FailedQuery:
    """A query that ended with an error, or without one."""

    name = "delays"
    isActive = False  # noqa: N815

    def __init__(self, error: str | None) -> None:
        self._error = None if error is None else StreamingQueryException(error)

    def exception(self):
        return self._error

    def processAllAvailable(self):  # noqa: N802
        raise self._error


class RunningQuery:
    """A query that processes its rows, after it has shown these states."""

    name = "delays"
    isActive = True  # noqa: N815

    def __init__(self, *states: str) -> None:
        self.states = [*states, "Processing new data"]

    @property
    def status(self):
        message = self.states[0]
        del self.states[: len(self.states) > 1]
        return {"message": message, "isDataAvailable": False, "isTriggerActive": False}

    def processAllAvailable(self):  # noqa: N802
        pass

    def stop(self):
        self.isActive = False


@pytest.mark.parametrize("verb", [Restarted.check, Restarted.finish])
def test_a_plan_that_was_not_serialized_is_tried_again(verb, capsys):
    race = "[STREAM_FAILED] terminated with exception: Task not serializable"
    for failures in range(1, Restarted.LIMIT + 1):
        starts = iter([FailedQuery(race)] * failures + [RunningQuery()])
        query = Restarted(lambda starts=starts: next(starts))
        for _ in range(failures):
            verb(query)
        assert isinstance(query.query, RunningQuery)
        assert capsys.readouterr().err.count("delays is started again") == failures
    for error in (race, "[STREAM_FAILED] stale_epoch"):
        starts = []
        query = Restarted(lambda error=error, starts=starts: starts.append(1) or FailedQuery(error))
        with pytest.raises(StreamingQueryException):
            deque((verb(query) for _ in range(9)), maxlen=0)
        assert len(starts) == (1 + Restarted.LIMIT if error == race else 1)


def test_a_query_is_initialized_before_the_next_one_starts():
    first = RunningQuery("Initializing StreamExecution", *["Initializing sources"] * 3)
    Restarted(lambda: first)
    assert first.states == ["Processing new data"]
    ended = RunningQuery("Initializing sources")
    ended.isActive = False
    assert Restarted(lambda: ended).query is ended


def test_a_query_that_ended_without_a_request_ends_the_job():
    with pytest.raises(SystemExit, match="ended without a request"):
        Restarted(lambda: FailedQuery(None)).check()


def test_the_feed_waits_for_the_job(topics, topic):
    flights = dataset(days=10)["flights"]
    lead, processed, rests = 1500, 0, 0
    # A simulated day starts at the time of the first row.
    first = flights[0].arrives
    day = max(Counter((row.arrives - first) // timedelta(days=1) for row in flights).values())
    feed = Feed(topics.url, {topic: flights}, lambda: processed, lead)
    feed.start()
    deadline = time.monotonic() + 300
    while feed.is_alive():
        assert time.monotonic() < deadline
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


def write_job(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Puts another program in the place of the pipeline's job."""
    program = folder / "pipeline" / "job.py"
    program.parent.mkdir()
    (program.parent / "__init__.py").touch()
    program.write_text(text)
    monkeypatch.setattr("pipeline.runner.HERE", folder)


def test_a_kill_reaches_what_left_the_group(tmp_path, monkeypatch):
    """Spark's workers leave the group: their daemon starts with `setpgid`."""
    write_job(
        tmp_path,
        monkeypatch,
        "import os, sys, time\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    os.setpgid(0, 0)\n"
        "    open(sys.argv[2] + '/child', 'w').write(str(os.getpid()))\n"
        "time.sleep(600)\n",
    )
    with Job("http://h:1", tmp_path, {}) as job:
        noted = tmp_path / "child"

        def is_noted():
            job.check()
            return noted.exists() and noted.read_text()

        until(is_noted, 60)
        job.kill()
    stat = Path(f"/proc/{noted.read_text()}/stat")
    until(lambda: not alive(stat), 60)
    with pytest.raises(SystemExit, match=f"{-signal.SIGKILL}"):
        job.check()


def test_nothing_outlives_a_job_that_has_ended(tmp_path, monkeypatch):
    """Executors go on for a moment, and write to their folder."""
    write_job(
        tmp_path,
        monkeypatch,
        "import subprocess, sys\n"
        "child = subprocess.Popen(['sleep', '600'])\n"
        "open(sys.argv[2] + '/child', 'w').write(str(child.pid))\n",
    )
    with Job("http://h:1", tmp_path, {}) as job:
        job.finish()
        stat = Path(f"/proc/{(tmp_path / 'child').read_text()}/stat")
        assert alive(stat)
    until(lambda: not alive(stat), 60)


def test_one_process_of_a_job_is_killed_and_the_others_go_on(tmp_path, monkeypatch):
    write_job(
        tmp_path,
        monkeypatch,
        "import os, subprocess, sys\n"
        "code = 'import sys; sys.stdin.read()'\n"
        "children = [subprocess.Popen([sys.executable, '-c', code, word], stdin=subprocess.PIPE)\n"
        "            for word in ('executor', 'other')]\n"
        "children[0].wait()\n"
        "open(sys.argv[2] + '/codes', 'w').write(f'{children[0].poll()} {children[1].poll()}')\n"
        "sys.stdin.read()\n",
    )
    with Job("http://h:1", tmp_path, {}) as job:
        until(lambda: sum(" executor" in found for found in job.processes().values()), 60)
        with pytest.raises(SystemExit, match="has no process nothing-like-it"):
            job.kill_one("nothing-like-it")
        job.kill_one(" executor")
        codes = tmp_path / "codes"
        until(lambda: codes.exists() and codes.read_text(), 60)
        assert codes.read_text() == f"{-signal.SIGKILL} None"
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
