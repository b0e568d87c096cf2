"""The demo on a few flights, and that its comparison sees what it is there to see."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benches.demo.compare import Row, mismatches
from benches.demo.flights import Batch, Flight, batches, flights
from benches.demo.load import Ack
from benches.demo.slices import members
from support.gate import run_seed
from support.gateway import go_tool

ROOT = Path(__file__).resolve().parents[2]


def test_small_run(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benches.demo", "--rows", "8000", "--dir", str(tmp_path / "d")]
    command += ["--seed", str(run_seed())]
    ran = subprocess.run(
        [*command, "--kills", "3"],
        cwd=ROOT,
        env=dict(os.environ, PYTHONPATH=str(ROOT / "tests")),
        capture_output=True,
        text=True,
        timeout=600,
    )
    print(ran.stdout)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    # How many are in doubt depends on the moment of the kill: the output has it.
    assert len(re.findall(r"kill \d at [\d.]+%: \d+ batches acked before", ran.stdout)) == 3
    assert ran.stdout.count("equal") == 2


@pytest.mark.slow
@pytest.mark.serial
def test_a_lost_machine_is_restored_from_the_bucket(tmp_path: Path) -> None:
    for tool in ("versitygw", "toxiproxy"):
        go_tool(tool)
    paths = (ROOT, ROOT / "tests", ROOT / "spark")
    command = [sys.executable, "-m", "benches.demo.remote", "--rows", "30000", "--batch", "20"]
    command += ["--seed", str(run_seed())]
    ran = subprocess.run(
        [*command, "--black-hole", "2", "--pace", "0.5"],
        cwd=tmp_path,
        env=dict(os.environ, PYTHONPATH=os.pathsep.join(map(str, paths))),
        capture_output=True,
        text=True,
        timeout=1200,
    )
    print(ran.stdout)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout.count("server killed") == 3
    assert re.findall("^(.*): the same", ran.stdout, re.MULTILINE) == [
        "te.open(URL)", "Spark over the bucket",
    ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.serial
def test_a_folder_that_is_away_and_hangs_loses_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benches.demo.folder", "--rows", "30000", "--batch", "20"]
    ran = subprocess.run(
        [*command, "--hang", "5", "--pace", "0.3"],
        cwd=tmp_path,
        env=dict(os.environ, PYTHONPATH=os.pathsep.join((str(ROOT), str(ROOT / "tests")))),
        capture_output=True,
        text=True,
        timeout=1200,
    )
    print(ran.stdout)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout.count("server killed") == 3
    assert "state refused, cold read: cold_unavailable" in ran.stdout


def test_missing_values_are_null_and_numbers_are_numbers() -> None:
    rows = list(flights(900))
    assert rows[0].data.startswith(b'{"year":2013,"month":1,"day":1,"dep_time":517,')
    assert sum(b'"dep_time":null' in row.data for row in rows) > 0
    assert not any(b'"NA"' in row.data for row in rows)
    made = batches(iter(rows), 100)
    assert sum(len(b.flights) for b in made) == 900
    assert len({b.topic for b in made}) == 3
    assert len({b.key for b in made}) == len(made)


def acked() -> list[Ack]:
    """Two batches of two records, one after the other."""
    made = [
        Batch(n, "t", tuple(Flight("t", "AA", b"%d%d" % (n, i)) for i in (0, 1))) for n in (0, 1)
    ]
    return [Ack(batch, 1 + 2 * n, 2 + 2 * n, False, 1, 0.0, 0.0) for n, batch in enumerate(made)]


STORED: list[Row] = [(1, "AA", b"00"), (2, "AA", b"01"), (3, "AA", b"10"), (4, "AA", b"11")]

DAMAGES: dict[str, Callable[[list[Row]], list[Row]]] = {
    "the last is lost": lambda rows: rows[:-1],
    "one in the middle is lost": lambda rows: rows[:1] + rows[2:],
    "one is there twice": lambda rows: [*rows, (5, "AA", b"11")],
    "two are swapped": lambda rows: [(1, "AA", b"01"), (2, "AA", b"00"), *rows[2:]],
    "a byte differs": lambda rows: [*rows[:3], (4, "AA", b"1!")],
    "a tag differs": lambda rows: [*rows[:3], (4, "BB", b"11")],
    "nothing is there": lambda rows: [],
}


def stored(rows: list[Row]) -> Callable[[str], Iterator[Row]]:
    return lambda _: iter(rows)


@pytest.mark.parametrize("damage", DAMAGES)
def test_comparison_sees(damage: str) -> None:
    assert mismatches(acked(), stored(STORED)) == []
    assert mismatches(acked(), stored(DAMAGES[damage](list(STORED))))


def test_comparison_sees_overlapping_acks() -> None:
    acks = acked()
    acks[1].first_seq -= 1
    acks[1].last_seq -= 1
    assert mismatches(acks, stored(STORED))


def test_slices_are_the_text_as_it_was() -> None:
    text = ' {"a" : [1.0, {"b":"]"}] , "records":[ {"x":1e5}, {"x":[]} ],"c":null} '
    found = {name: text[a:b] for name, a, b in members(text, 0)}
    assert found["a"] == '[1.0, {"b":"]"}]'
    inner = members(found["records"], 0)
    assert [found["records"][a:b] for _, a, b in inner] == ['{"x":1e5}', '{"x":[]}']
    assert list(members("[]", 0)) == []
