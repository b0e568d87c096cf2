"""What the benchmarks make of their rows: the format, the summary, the comparison of two runs."""

from __future__ import annotations

import json
import random
import re
from dataclasses import asdict, fields, replace
from pathlib import Path

import pytest

import topics_engine as te
from benches import soak_store
from benches.compare import Change, compare, render
from benches.report import Row, Run, Table, curve, load, parse, short, tail
from benches.soak import LIMITS, main, trend
from benches.soak_store import FAULTS, OPEN, Acked
from benches.summary import summary
from support.gateway import CREDENTIALS, go_tool

ROOT = Path(__file__).resolve().parents[2]
ABOUT = {"date": "2026-01-02T03:04:05+00:00", "commit": "abc1234", "machine": "2 cores, Linux"}


def row(work: str = "w", figure: float = 100.0, **more: object) -> Row:
    base = Row("p", work, figure, "rec/s", "more", runs=[figure])
    return replace(base, **more)  # type: ignore[arg-type]


def run(*rows: Row) -> Run:
    return Run(dict(ABOUT), list(rows))


def test_rows_are_read_as_they_were_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run.jsonl"
    out.write_text(json.dumps(ABOUT) + "\n")
    monkeypatch.setenv("TOPICS_BENCH_OUT", str(out))
    table = Table("python", "Title")
    latency = curve(list(range(1000, 2001)))
    table.row("append", [3.0, 1.0, 2.0], "µs", ("≤", 1.5), latency=latency, notes=["a note"])
    table.row("read", 5e6, "rec/s", peers={"redis": 4e6})
    table.finish()
    (saved,) = load(out)
    assert saved.about == ABOUT
    append, read = saved.rows
    assert (append.figure, append.goal, append.runs, append.missed) == (2, 1.5, [3, 1, 2], True)
    assert (read.better, read.goal, read.best_peer, read.missed) == (
        "more",
        None,
        ("redis", 4e6),
        False,
    )
    assert [value for q, value in append.latency if q in (0.0, 0.5, 1.0)] == [1.0, 1.5, 2.0]
    printed = capsys.readouterr().out
    assert "MISSED a note" in printed
    assert "goal missed: append: 2.00 µs, goal ≤ 1.50" in printed
    with pytest.raises(AssertionError, match="two rows are called 'read'"):
        table.row("read", 1.0, "rec/s")


def test_rust_writes_the_same_fields() -> None:
    source = (ROOT / "benches" / "report.rs").read_text()
    written = re.findall(r'^ {12}"(\w+)":', source, re.MULTILINE)
    assert written == [field.name for field in fields(Row)]
    units = re.search(r"Goal::None => \[(.*)\]\.contains", source)
    assert units is not None
    from benches.report import LESS_IS_BETTER

    assert set(re.findall(r'"([^"]+)"', units[1])) == LESS_IS_BETTER


def test_a_file_may_hold_several_runs() -> None:
    lines = [json.dumps(asdict(row("alone"))), "", json.dumps(ABOUT), json.dumps(asdict(row()))]
    first, second = parse(lines)
    assert (first.about, [r.work for r in first.rows]) == ({}, ["alone"])
    assert (second.about, [r.work for r in second.rows]) == (ABOUT, ["w"])


def test_tail_and_short() -> None:
    assert tail(curve(list(range(0, 1_000_001, 1000)))) == "p99 990.0, p99.9 999.0, max 1000"
    assert curve([]) == []
    figures = [0.5, 99.994, 123.4, 9999.4, 12_345.0, 1.5e6, 2.5e7]
    shown = ["0.50", "99.99", "123", "9999", "12.3 k", "1.50 M", "25.0 M"]
    assert [short(f) for f in figures] == shown


def test_the_summary_has_goals_peers_and_what_is_missed() -> None:
    slow = Row("p", "slow", 40.0, "µs", "less", goal=30.0, peers={"redis": 20.0, "nats": 50.0})
    rows = [row("plain"), row("fast", 200.0, goal=100.0, peers={"kafka": 50.0}), slow]
    lines = summary(run(*rows))
    assert lines[0] == "2026-01-02T03:04:05+00:00, abc1234, 2 cores, Linux"
    text = "\n".join(lines)
    assert "plain" not in text
    assert re.search(r"p: fast +200 rec/s +≥ 100 +kafka 50\.00 +4\.0 x$", text, re.MULTILINE)
    # The better of two peers, and a ratio below one where it is ahead.
    assert re.search(r"  slow +40\.00 µs +≤ 30\.00 ! redis 20\.00 +0\.5 x$", text, re.MULTILINE)
    assert "1 of 2 goals met; 1 more rows above" in text
    assert lines[-1] == "missed, and what is reached of each goal: p: slow (0.75)"
    assert max(map(len, lines)) <= 118


def test_the_summary_of_a_small_run_says_so() -> None:
    lines = summary(Run({**ABOUT, "scale": 0.1}, [row()]))
    assert lines[1] == "at 0.1 of the sizes: no figure here is a measurement"
    assert "measurement" not in "\n".join(summary(Run({**ABOUT, "scale": 1.0}, [row()])))


def verdict(before: list[Row], after: list[Row]) -> str:
    (change,) = compare([run(r) for r in before], [run(r) for r in after])
    return change.verdict


def test_a_change_within_the_repetitions_is_noise() -> None:
    wide = row(runs=[80.0, 100.0, 120.0])
    narrow = row(runs=[99.0, 100.0, 101.0])
    faster = row(figure=115.0, runs=[114.0, 115.0, 116.0])
    assert verdict([wide], [faster]) == ""
    assert verdict([faster], [wide]) == ""
    assert verdict([narrow], [faster]) == "better"
    assert verdict([faster], [narrow]) == "worse"


def test_less_is_better_for_times() -> None:
    steady = {"unit": "µs", "better": "less"}
    quick = row(figure=50.0, runs=[50.0, 50.5, 49.5], **steady)
    slow = row(figure=100.0, runs=[100.0, 101.0, 99.0], **steady)
    assert verdict([slow], [quick]) == "better"
    assert verdict([quick], [slow]) == "worse"


def test_a_device_that_changed_as_much_explains_a_change() -> None:
    before = row(runs=[99.0, 100.0, 101.0], device=1000.0)
    after = row(figure=50.0, runs=[49.9, 50.0, 50.1], device=500.0)
    assert verdict([before], [after]) == ""
    assert verdict([before], [replace(after, device=1000.0)]) == "worse"


def test_without_repetitions_a_tenth_or_the_usual_change_of_the_device_counts() -> None:
    assert verdict([row(figure=100.0)], [row(figure=109.0)]) == ""
    assert verdict([row(figure=100.0)], [row(figure=112.0)]) == "better"
    noisy = [row("d", device=100.0), row("d", device=140.0)]
    found = compare([run(row(), noisy[0])], [run(row(figure=112.0), noisy[1])])
    assert [(c.work, c.verdict, round(c.noise, 2)) for c in found] == [
        ("w", "", 0.4),
        ("d", "", 0.4),
    ]


def test_several_files_are_repetitions() -> None:
    before = [row(figure=f, runs=[1.0, 1000.0]) for f in (98.0, 100.0, 102.0)]
    after = [row(figure=f, runs=[1.0, 1000.0]) for f in (118.0, 120.0, 122.0)]
    assert verdict(before, after) == "better"
    (change,) = compare([run(r) for r in before], [run(r) for r in after])
    assert (change.before, change.after) == (100.0, 120.0)
    assert round(change.noise, 3) == round(102 / 98 - 1, 3)


def test_rows_of_one_run_only_are_left_out_and_counted() -> None:
    text = "\n".join(render([run(row("a"), row("both"))], [run(row("b"), row("both"))]))
    assert "2 rows are in one of the two only" in text
    assert "better beyond noise: 0 of 1" in text
    assert "different machines" not in text
    other = Run({**ABOUT, "machine": "8 cores"}, [row("both")])
    assert "different machines: 2 cores, Linux, 8 cores" in "\n".join(
        render([run(row("both"))], [other])
    )


def test_a_row_that_was_zero() -> None:
    assert Change("p", "w", "s", "less", 0.0, 0.0, 0.1).verdict == ""
    assert Change("p", "w", "s", "less", 0.0, 1.0, 0.1).verdict == "worse"
    lines = render([run(row(figure=0.0))], [run(row(figure=1.0))])
    assert any(line.endswith("better") for line in lines)


def test_a_trend_is_the_growth_in_an_hour_without_single_peaks() -> None:
    minutes = [n / 6 for n in range(120)]
    assert trend(minutes, [40.0] * 120) == 0
    assert trend(minutes, [40 + minute for minute in minutes]) == pytest.approx(60)
    peaks = [90.0 if n % 6 == 0 else 40.0 for n in range(120)]
    assert trend(minutes, peaks) == 0
    assert trend([0.1, 0.2], [1, 2]) == 0
    # Memory that begins anew with each process, five minutes long, has no trend.
    assert trend(minutes, [40 + minute % 5 for minute in minutes], 5) == pytest.approx(0)
    assert trend(minutes, [40 + minute // 5 for minute in minutes], 5) == pytest.approx(12)


@pytest.mark.slow
def test_a_short_soak_has_every_kind_of_traffic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["--minutes", "0.5", "--out", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    print(said)
    assert len(re.findall(r"'\w+': [1-9]\d*", said)) == 7
    assert (tmp_path / "soak.csv").read_text().splitlines()[0] == ",".join(["minute", *LIMITS])


@pytest.mark.slow
def test_a_short_soak_recovers_from_every_fault_of_its_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, key in CREDENTIALS.items():
        monkeypatch.setenv(name, key)
    for tool in ("versitygw", "toxiproxy"):
        go_tool(tool)
    monkeypatch.chdir(tmp_path)
    code = main(["--remote", "--minutes", "0.5", "--out", str(tmp_path)])
    said = capsys.readouterr().out
    print(said)
    assert code == 0
    assert re.findall(r"^(.*): the lag had returned after [\d.]+ s$", said, re.MULTILINE) == [
        fault.name for fault in (OPEN, *FAULTS)
    ]
    assert re.search(r"^restored and compared: [1-9]\d* acked", said, re.MULTILINE)
    first, *_ = (tmp_path / "soak-remote.csv").read_text().splitlines()
    assert first == ",".join(["minute", *(LIMITS | soak_store.LIMITS), *soak_store.WITHOUT_LIMIT])


def test_what_a_restored_soak_lacks_is_found(data_dir: Path) -> None:
    acked = Acked()
    rng = random.Random(1)
    with te.open(data_dir) as db:
        for turn in range(4):
            acked.append(db, rng, turn)
        assert acked.problems(db) == []
        db.topic(Acked.TOPIC).delete(seqs=[7])
        assert acked.problems(db) == ["acked: 1 records are gone, the first is 7"]
        # What was sent and not acked may be there, once.
        del acked.numbers[9], acked.numbers[7]
        assert acked.problems(db) == []
        acked.numbers[9] = 77
        db.topic(Acked.TOPIC).append([{"n": 3}, {"n": 10_000}])
        assert acked.problems(db) == ["acked: 3 records differ, the first is 9"]
