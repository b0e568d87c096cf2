"""The lake: what its example expects and compares; and whole runs of the example and its page."""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import sys
import zlib
from pathlib import Path

import pytest
from lake import delta, iceberg
from lake.__main__ import UNAVAILABLE, forget_last_commit, missing_jars
from lake.compare import compare_letters
from lake.dataset import BINARY, MISFIT, MISSING, expected, record, sums
from lake.environment import DELTA, ICEBERG, Unavailable, environment, pinned
from lake.environment import main as run_command
from lake.job import TOPIC
from pipeline.dataset import dataset
from pipeline.runner import HERE
from pyspark_topics.compat import ADMITS_ROWS

from python.test_snippets import DOCS
from support.gate import GATE

PAGE = DOCS / "guides" / "lake.md"


@pytest.fixture
def release(request):
    """Skips a test below the release gate, unless it is selected by name: it takes minutes, and
    downloads more than a gigabyte the first time."""
    if GATE != "release" and not any("::" in argument for argument in request.config.args):
        pytest.skip("runs at the release gate, or by its name")
    if not ADMITS_ROWS:
        pytest.skip("has Sparks of its own, and runs beside the newest one")


def without_download(reason: str) -> None:
    """Skips a test that needs a download; at the release gate it fails."""
    if GATE == "release":
        pytest.fail(reason)
    pytest.skip(reason)


def run(*command: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    paths = [*filter(None, [env.get("PYTHONPATH")]), ".", "..", "../tests"]
    return subprocess.run(
        [sys.executable, *command],
        cwd=HERE,
        env={**env, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=3600,
    )


@pytest.mark.slow
def test_a_fortnight_with_kills_equals_pandas(release):
    done = run("-m", "lake", "--days", "14", "--seed", "7", env=dict(os.environ))
    if done.returncode == UNAVAILABLE:
        without_download(done.stdout.splitlines()[-1])
    assert done.returncode == 0, done.stdout + done.stderr
    for phase, kills in (("feeding", 1), ("processing", 1), ("writing to Iceberg", 2)):
        assert done.stdout.count(f"killed in {phase}") >= kills, done.stdout
    assert "both tables equal pandas, each row once" in done.stdout
    for table in ("delta", "iceberg"):
        found = re.search(rf"{table}: (\d+) files, (\d+) after", done.stdout)
        assert int(found[1]) > int(found[2]) > 0


@pytest.mark.slow
def test_what_the_page_shows(release, tmp_path):
    """Its two parts, in their order: the second one reads the topic of the first."""
    for group, count in ((DELTA, 7), (ICEBERG, 3)):
        try:
            env = environment(group)
        except Unavailable as e:
            without_download(str(e))
        done = run(str(Path(__file__).with_name("lake_page.py")), str(tmp_path), group, env=env)
        (tmp_path / "log").write_text(done.stderr)
        if missing := missing_jars(tmp_path / "log"):
            without_download(missing[0])
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stdout.endswith(f"{count} snippets\n")


def test_the_page_has_the_versions_of_the_example():
    text = PAGE.read_text()
    for package in (delta.PACKAGE, iceberg.PACKAGE):
        assert package in text
    for name, value in {**delta.SETTINGS, **iceberg.SETTINGS}.items():
        assert f'"{name}": "{value}"' in text
    for group in (DELTA, ICEBERG):
        assert f"pyspark=={pinned(group)}" in text


@pytest.fixture(scope="module")
def rows():
    return dataset(days=14)[TOPIC]


def test_every_row_is_good_or_a_dead_letter(rows):
    good, dead = expected(rows)
    assert sorted([*good["seq"], *dead]) == list(range(1, len(rows) + 1))
    assert set(dead.values()) == {BINARY, MISFIT, MISSING}
    totals = sums(good)
    assert totals["flights"].sum() == len(good)
    assert totals["delay_sum"].sum() == good["dep_delay"].sum()
    # The last row has an airport of its own, and no delay.
    assert totals[totals["origin"] == "END"]["delay_sum"].isna().all()


def letter(seq, row, reason):
    return {**record(row), "meta": {"bad_topic": TOPIC, "bad_seq": str(seq), "bad_reason": reason}}


def test_dead_letters_are_compared(rows):
    _, dead = expected(rows)
    good = [letter(seq, rows[seq - 1], reason) for seq, reason in dead.items()]
    assert compare_letters(good, rows, dead) == []
    binary = [one for one in good if one["meta"]["bad_reason"] == BINARY]
    other = [one for one in good if one["meta"]["bad_reason"] == MISFIT]
    # The copy of a binary record is made at least once.
    assert compare_letters([*good, *binary], rows, dead) == []
    for changed, word in [
        ([*good, *other], "twice"),
        (good[1:], "not 22"),
        ([*good, letter(1, rows[0], MISFIT)], "23 dead letters"),
        ([*good, letter(len(rows) + 1, rows[0], MISFIT)], "of no record"),
    ]:
        assert word in str(compare_letters(changed, rows, dead))
    bytes_of_another = base64.b64encode(zlib.compress(b"{}")).decode()
    for kind, key, value in ((binary, "data_b64", bytes_of_another), (other, "data", {})):
        assert key in kind[0]
        changed = [{**one, key: value} if one is kind[0] else one for one in good]
        (line,) = compare_letters(changed, rows, dead)
        assert f"seq {kind[0]['meta']['bad_seq']} has " in line


def test_a_forgotten_commit(tmp_path):
    for log in ("offsets", "commits"):
        (tmp_path / log).mkdir()
        for batch in range(11):
            (tmp_path / log / str(batch)).touch()
            (tmp_path / log / f".{batch}.crc").touch()
    assert forget_last_commit(tmp_path) == 10
    left = {file.name for file in (tmp_path / "commits").iterdir()}
    assert left == {f"{dot}{n}{end}" for n in range(10) for dot, end in (("", ""), (".", ".crc"))}
    with pytest.raises(SystemExit, match="batch 10 is not finished"):
        forget_last_commit(tmp_path)


def test_jars_that_are_missing(tmp_path):
    log = tmp_path / "job.log"
    assert missing_jars(log) == []
    log.write_text("an error\n")
    assert missing_jars(log) == []
    log.write_text("x\n unresolved dependency: io.delta#delta-spark_4.2_2.13;4.4.0: not found\n")
    assert "delta-spark_4.2" in missing_jars(log)[0]


def test_a_spark_that_cannot_be_installed(tmp_path, monkeypatch):
    monkeypatch.setattr("lake.environment.ROOT", tmp_path)
    (tmp_path / "pyproject.toml").write_bytes((DOCS.parent / "pyproject.toml").read_bytes())
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    for _ in range(2):
        with pytest.raises(Unavailable, match=rf"pyspark {pinned(DELTA)} cannot be installed: .*"):
            environment(DELTA)
    # The next start does not take it for installed.
    assert not (tmp_path / "target" / f"spark-{pinned(DELTA)}" / "installed").exists()
    (tmp_path / "target" / f"spark-{pinned(DELTA)}" / "installed").touch()
    first, *_ = environment(DELTA)["PYTHONPATH"].split(os.pathsep)
    assert first == str(tmp_path / "target" / f"spark-{pinned(DELTA)}")


def test_a_command_with_another_spark(tmp_path, monkeypatch):
    monkeypatch.setattr("lake.environment.ROOT", tmp_path)
    (tmp_path / "pyproject.toml").write_bytes((DOCS.parent / "pyproject.toml").read_bytes())
    monkeypatch.setattr("sys.argv", ["environment", ICEBERG, "python", "-m", "lake"])
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    with pytest.raises(SystemExit, match=f"pyspark {pinned(ICEBERG)} cannot be installed"):
        run_command()
    folder = tmp_path / "target" / f"spark-{pinned(ICEBERG)}"
    (folder / "installed").touch()
    started = []
    monkeypatch.setattr("os.execvpe", lambda *arguments: started.append(arguments))
    run_command()
    ((program, command, env),) = started
    assert (program, command) == ("python", ["python", "-m", "lake"])
    assert env["PYTHONPATH"].split(os.pathsep)[0] == str(folder)


def test_some_records_are_compressed(rows):
    for row in rows:
        found = record(row)
        text = found.get("data_b64")
        if text is None:
            assert found == {"data": json.loads(row.text)}
        else:
            assert zlib.decompress(base64.b64decode(text)).decode() == row.text
    assert 0 < sum("data_b64" in record(row) for row in rows) < 100
