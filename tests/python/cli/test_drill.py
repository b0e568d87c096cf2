"""`topics verify URL --drill`: a rehearsal of a restore."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import topics_engine as te
from support.server import opened
from support.waiting import until
from topics_engine.cli import drill, main
from topics_engine.cli.exits import Exit

RECORDS = 40


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"file://{tmp_path}/remote"


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The directory for temporary files, which each test leaves empty."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    assert list(folder.iterdir()) == []


def is_shipped(db: te.Database) -> bool:
    metrics = db.metrics()
    return metrics["remote_lag_bytes"] == 0 == metrics["remote_lag_seconds"]


def filled(data_dir: Path, url: str | None, *, without: int | None = None) -> None:
    """A directory with a topic `t`, and what it ships."""
    settings: te.Settings = {"segment_max_events": 10}
    if url is not None:
        settings |= {"remote_url": url, "remote_interval_ms": 20}
    with te.open(data_dir, **settings) as db:
        topic = db.topic("t", durability="fsync")
        topic.append([{"n": n} for n in range(RECORDS)])
        db.checkpoint()
        if without is not None:
            topic.delete(seqs=[without])
        db.topic("live", durability="ephemeral").append({"n": 0})
        if url is not None:
            until(
                lambda: db.metrics()["remote_lag_bytes"] == 0 == db.metrics()["remote_lag_seconds"]
            )


def ran(capsys: Any, *command: str, status: int = Exit.OK) -> dict[str, Any]:
    assert main([*command, "--json"]) == status
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_a_drill_reports_what_a_copy_holds(
    url: str, data_dir: Path, tmp_path: Path, capsys: Any
) -> None:
    filled(data_dir, url)
    before = {p: p.read_bytes() for p in (tmp_path / "remote").rglob("*") if p.is_file()}
    found = ran(capsys, "verify", url, "--drill")
    assert found.pop("state_ms") > 0
    assert found.pop("restore_s") >= 0
    assert found.pop("bytes") > 0
    assert found == {
        "remote": url,
        "ok": True,
        "topics": 2,
        "records": RECORDS,
        "behind": None,
        "problems": [],
    }
    assert before == {p: p.read_bytes() for p in (tmp_path / "remote").rglob("*") if p.is_file()}


def test_newer_records_of_the_engine_are_no_problem(url: str, data_dir: Path, capsys: Any) -> None:
    filled(data_dir, url)
    found = ran(capsys, "--data-dir", str(data_dir), "verify", url, "--drill")
    assert (found["ok"], found["behind"]) == (True, 0)
    with te.open(data_dir) as db:
        db.topic("t").append([{"n": n} for n in range(3)])
        db.topic("new").append([{"n": n} for n in range(2)])
        db.topic("t").delete(seqs=[5])
    found = ran(capsys, "--data-dir", str(data_dir), "verify", url, "--drill")
    assert (found["ok"], found["behind"]) == (True, 5)


def test_a_drill_compares_with_a_server(url: str, data_dir: Path, capsys: Any) -> None:
    filled(data_dir, url)
    with opened(data_dir) as server:
        for place in (["--url", server.url], ["--data-dir", str(data_dir)]):
            found = ran(capsys, *place, "verify", url, "--drill")
            assert (found["ok"], found["behind"]) == (True, 0)


def test_records_that_a_copy_lacks_are_problems(
    url: str, data_dir: Path, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Of an engine that has more than what was shipped.
    other = tmp_path / "other"
    filled(other, None)
    filled(data_dir, url, without=7)
    command = ["--data-dir", str(other), "verify", url, "--drill"]
    found = ran(capsys, *command, status=Exit.CORRUPT)
    assert found["problems"] == [{"topic": "t", "detail": "the copy lacks 1 of its records"}]

    with te.open(other) as db:
        db.topic("t").append({"n": RECORDS})
        db.topic("u", durability="fsync").append({"n": 0})
    with te.open(data_dir, remote_url=url) as db:
        db.topic("v").append({"n": 0})
        until(lambda: is_shipped(db))
    monkeypatch.setattr(drill, "SLACK_MS", 0)
    found = ran(capsys, *command, status=Exit.CORRUPT)
    older = "which is older than the state of the copy"
    assert found["problems"] == [
        {"topic": "t", "detail": f"the copy lacks seq {RECORDS + 1}, {older}"},
        {"topic": "u", "detail": f"the copy lacks seq 1, {older}"},
    ]
    assert found["behind"] == 2


def test_a_drill_finds_damage(url: str, data_dir: Path, tmp_path: Path, capsys: Any) -> None:
    filled(data_dir, url)
    for round_object in (tmp_path / "remote").glob("*/p*"):
        round_object.unlink()
    assert main(["verify", url, "--drill"]) == Exit.FAILED
    assert "does not exist" in capsys.readouterr().err


def metrics_of(file: Path) -> dict[str, float]:
    lines = [line for line in file.read_text().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in (line.split(" ") for line in lines)}


def test_the_outcome_is_written_as_metrics(
    url: str, data_dir: Path, tmp_path: Path, capsys: Any
) -> None:
    filled(data_dir, url)
    file = tmp_path / "collected" / "topics_drill.prom"
    file.parent.mkdir()
    command = ["verify", url, "--drill", "--metrics", str(file)]
    report = ran(capsys, *command)
    found = metrics_of(file)
    assert found.pop("topics_drill_timestamp_seconds") >= report["state_ms"] / 1000
    assert found == {
        "topics_drill_ok": 1,
        "topics_drill_state_timestamp_seconds": report["state_ms"] / 1000,
        "topics_drill_restore_seconds": report["restore_s"],
        "topics_drill_records": RECORDS,
    }

    filled(tmp_path / "third", f"{url}-2", without=7)
    second = ["--data-dir", str(data_dir), "verify", f"{url}-2", "--drill", "--metrics", str(file)]
    ran(capsys, *second, status=Exit.CORRUPT)
    assert metrics_of(file)["topics_drill_ok"] == 0
    assert metrics_of(file)["topics_drill_records"] == RECORDS - 1

    # An error leaves the fact that the drill failed, and nothing of the drill before.
    missing = ["--data-dir", str(tmp_path / "none"), *command]
    assert main(missing) != Exit.OK
    assert set(metrics_of(file)) == {"topics_drill_ok", "topics_drill_timestamp_seconds"}
    assert metrics_of(file)["topics_drill_ok"] == 0
    assert list(file.parent.iterdir()) == [file]
    capsys.readouterr()

    assert main([*command[:-1], str(tmp_path / "nowhere" / "file")]) == Exit.FAILED
    assert "nowhere" in capsys.readouterr().err


@pytest.mark.parametrize("file", ["", ".", "nowhere/file"])
def test_a_file_that_cannot_be_written_is_noticed_before_the_restore(
    file: str, url: str, capsys: Any
) -> None:
    # There is nothing to restore.
    assert main(["verify", url, "--drill", "--metrics", file]) == Exit.FAILED
    assert "name a file in a directory that exists" in capsys.readouterr().err


def test_metrics_are_of_a_drill(url: str, capsys: Any) -> None:
    for command in (["verify", url, "--metrics", "file"], ["verify", "--metrics", "file"]):
        assert main(command) == Exit.USAGE
        assert "--metrics goes with" in capsys.readouterr().err


def test_a_drill_is_of_a_prefix(data_dir: Path, capsys: Any) -> None:
    filled(data_dir, None)
    assert main(["--data-dir", str(data_dir), "verify", "--drill"]) == Exit.USAGE
    assert "--drill goes with the URL of a prefix" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["verify", "file:///remote", "--data", "--drill"])
    assert "not allowed with argument" in capsys.readouterr().err
