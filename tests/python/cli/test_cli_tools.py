"""The command line's tools: files in and out, completion, exit codes, bars, advice."""

from __future__ import annotations

import argparse
import io
import itertools
import json
import sys
from pathlib import Path
from typing import Any

import pytest

import topics_engine as te
from support.server import Server
from support.terminal import Run, Terminal
from support.waiting import DEADLINE, until
from topics_engine.cli import main, transfer
from topics_engine.cli.csvfile import rows_of_csv
from topics_engine.cli.exits import advice_for
from topics_engine.cli.main import COMMANDS, LOCAL_COMMANDS
from topics_engine.cli.measure import advice_on_server
from topics_engine.cli.output import ElapsedTime, Progress
from topics_engine.cli.tools import Checked

parquet = pytest.importorskip("pyarrow.parquet")

LINES = (
    b'{"data":{"n":1.50e+3},"$tag":"eu:1","$node":"w1","meta":{"k":"v"},"$seq":99,"$ts":1}\n'
    b'\n{"data":[1, 2]}\n'
    b'{"data":"\xc3\xa9\\u0000","meta":{"a":"b","c":"\\""}}\n'
    b'{"data":null,"$tag":"us:1"}\n'
)
BYTES = b'{"data_b64":"/wA="}\n'


def comparable(records: list[Any]) -> list[Any]:
    """What an export keeps."""
    return [{k: v for k, v in r.items() if k not in ("$seq", "$ts")} for r in records]


@pytest.mark.parametrize("ending", [".jsonl", ".csv", ".arrow", ".parquet", ""])
@pytest.mark.parametrize("tail", [b"", BYTES], ids=["json", "binary"])
def test_an_export_comes_back(
    cli: Run, topic: str, tmp_path: Path, ending: str, tail: bytes
) -> None:
    # A column of Arrow is of one kind.
    lines = LINES + tail if ending not in (".arrow", ".parquet") else tail or LINES
    code, (said,) = cli("import", topic, "--origin", "all", stdin=lines)
    count = 5 if lines == LINES + BYTES else 1 if lines == BYTES else 4
    assert (code, said["count"], said["gaps_passed_over"]) == (0, count, 0)
    before = cli("read", topic)[1]
    assert {r["$node"] for r in before} <= {"w1", "all"}
    file = str(tmp_path / f"out{ending}")
    code, (said,) = cli("export", topic, file)
    assert (code, said["records"], said["gaps"], said["file"]) == (0, count, 0, file)
    assert not Path(f"{file}.part").exists()
    copy = f"{topic}-copy"[-100:].lstrip("-")
    code, (said,) = cli("import", copy, file)
    assert (code, said["first_seq"], said["last_seq"]) == (0, 1, count)
    assert comparable(cli("read", copy)[1]) == comparable(before)
    # Numbers are those that were written, digit by digit.
    again = str(tmp_path / "again.jsonl")
    assert cli("export", copy, again)[0] == 0
    assert (b"1.50e+3" in Path(again).read_bytes()) == (lines != BYTES)


@pytest.mark.parametrize("kind", ["jsonl", "csv", "arrow", "parquet"])
def test_ranges_filters_losses_and_pipes(
    cli: Run, topic: str, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli("create", topic, "--set", "cap_records=6")[0] == 0
    for n in range(10):
        line = b'{"data":%d,"$tag":"t:%d"}\n' % (n, n % 2)
        assert cli("import", topic, stdin=line)[0] == 0
    everything = tmp_path / "all"
    assert cli("export", topic, str(everything), "--format", kind, "--after", "0") == (
        0,
        [{"topic": topic, "file": str(everything), "records": 6, "gaps": 1}],
    )
    copy = f"c{topic}"[:100]
    code, (said,) = cli("import", copy, str(everything), "--format", kind)
    assert (code, said["count"], said["gaps_passed_over"]) == (0, 6, 1)
    some = ("--after", "5", "--to-seq", "9", "--tag", "t:1")
    where = cli.where  # type: ignore[attr-defined]
    pipe = io.BytesIO()
    with monkeypatch.context() as patched:
        patched.setattr(sys, "stdout", io.TextIOWrapper(pipe, write_through=True))
        assert main([*where, "export", topic, "--format", kind, *some]) == 0
        piped = pipe.getvalue()
    if kind == "jsonl":
        assert [json.loads(line)["$seq"] for line in piped.splitlines()] == [6, 8]
    elif kind == "csv":
        assert [line.split(b",")[0] for line in piped.splitlines()] == [b"seq", b"6", b"8"]
    else:
        assert cli("import", f"{copy}-p", "--format", kind, stdin=piped)[1][0]["count"] == 2
        assert [r["data"] for r in cli("read", f"{copy}-p")[1]] == [5, 7]
    # Nothing is a file too.
    none = tmp_path / "none"
    assert cli("export", topic, str(none), "--format", kind, "--after", "10")[1][0]["records"] == 0
    assert cli("import", f"{copy}-n", str(none), "--format", kind)[1] == [
        {"topic": f"{copy}-n", "count": 0, "gaps_passed_over": 0}
    ]


def test_a_csv_file_may_be_closed_before_its_rows_are_read() -> None:
    source = io.BytesIO(b"n\n1\n2\n")
    rows = rows_of_csv(source, argparse.Namespace(tag=None, skip_lines=0), [0])
    assert next(rows)[1][0] == b'{"n": "1"}'
    # As an import that is interrupted ends.
    source.close()
    rows.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize("ending", ["parquet", "arrow"])
def test_a_table_without_payloads_is_refused(
    cli: Run, topic: str, tmp_path: Path, capsys: Any, ending: str
) -> None:
    pa = pytest.importorskip("pyarrow")
    feather = pytest.importorskip("pyarrow.feather")
    file = tmp_path / f"own.{ending}"
    write = {"parquet": parquet.write_table, "arrow": feather.write_feather}[ending]
    write(pa.table({"id": [1, 2]}), file)
    where: list[str] = cli.where  # type: ignore[attr-defined]
    assert main([*where, "import", topic, str(file)]) == 2
    said = capsys.readouterr().err
    assert "the table has no column 'data', only ['id']: `import` reads records" in said
    assert "Traceback" not in said


def test_any_csv_becomes_objects(cli: Run, topic: str, tmp_path: Path, capsys: Any) -> None:
    file = tmp_path / "people.csv"
    file.write_bytes(b'\xef\xbb\xbfname,"full ""text"""\r\nAda,"a,\nb"\r\n\xc3\x89va,\r\n')
    assert cli("import", topic, str(file), "--tag", "x")[1][0]["count"] == 2
    assert [(r["data"], r["$tag"]) for r in cli("read", topic)[1]] == [
        ({"name": "Ada", 'full "text"': "a,\nb"}, "x"),
        ({"name": "\u00c9va", 'full "text"': ""}, "x"),
    ]
    exported = "seq,time,tag,origin,meta,data,data_b64,gap_to,gap_reason\n1,,,,"
    for text, says in (
        ("a,b\n1\n", "line 2"),
        ("a,b\n1,2,3\n", "line 2"),
        ("a,a\n1,2\n", "each once"),
        ('a\n"b', "not valid CSV"),
        (exported + ",{,,,\n", "line 2"),
        (exported + "x,1,,,\n", "line 2"),
        (exported + ",,*,,\n", "line 2"),
    ):
        file.write_text(text)
        capsys.readouterr()
        where = cli.where  # type: ignore[attr-defined]
        assert main([*where, "import", topic, str(file)]) == 2, text
        assert says in capsys.readouterr().err


def test_an_ending_that_names_no_format_is_refused(cli: Run, topic: str, tmp_path: Path) -> None:
    assert cli("append", topic, stdin=b"1\n")[0] == 0
    file = tmp_path / "orders.xlsx"
    assert cli("export", topic, str(file))[0] == 2
    assert not file.exists()
    assert cli("export", topic, str(file), "--format", "csv")[0] == 0


def test_a_big_export_goes_in_parts(cli: Run, topic: str, tmp_path: Path) -> None:
    text = b"".join(b'{"data":"%06d%s"}\n' % (n, b"x" * 800) for n in range(20_000))
    assert cli("import", topic, "--batch", "100", stdin=text)[1][0]["count"] == 20_000
    file = str(tmp_path / "big.parquet")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(transfer, "PART_BYTES", 2 << 20)
        assert cli("export", topic, file)[1][0]["records"] == 20_000
    table = parquet.read_table(file)
    assert table["seq"].to_pylist() == list(range(1, 20_001))
    assert table["data"][19_999].as_py()[1:7] == "019999"


def test_files_that_are_none(
    cli: Run, topic: str, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli("append", topic, stdin=b'1\n"x"\n')[0] == 0
    where = cli.where  # type: ignore[attr-defined]

    def failed(*arguments: str, stdin: bytes = b"") -> tuple[int, str]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        capsys.readouterr()
        return main([*where, *arguments]), capsys.readouterr().err

    code, said = failed("import", topic, stdin=b'{"data":1}\n{"id":1}\n')
    assert (code, "line 2" in said, "topics append" in said) == (2, True, True)
    assert failed("import", topic, stdin=b"{\n")[0] == 2
    assert failed("import", topic, str(tmp_path / "none.jsonl"))[0] == 1
    for ending in ("arrow", "parquet"):
        bad = tmp_path / f"bad.{ending}"
        bad.write_bytes(b"nothing of the kind")
        assert failed("import", topic, str(bad))[0] == 2
    out = tmp_path / "absent.parquet"
    code, said = failed("export", topic + "-absent", str(out))
    assert (code, "topics ls" in said) == (3, True)
    assert list(tmp_path.glob("absent*")) == []
    assert failed("export", topic, str(tmp_path / "none" / "x"))[0] == 1

    def absent(name: str) -> Any:
        raise ModuleNotFoundError(name, name=name)

    monkeypatch.setattr("importlib.import_module", absent)
    code, said = failed("export", topic, str(out))
    assert (code, "topics-engine[arrow]" in said) == (1, True)
    assert list(tmp_path.glob("absent*")) == []


def test_json_and_bytes_do_not_share_a_column(tmp_path: Path, capsys: Any) -> None:
    where = ["--data-dir", str(tmp_path / "data")]
    with te.open(tmp_path / "data") as db:
        db.topic("t").append([1, b"2"])
    file = tmp_path / "t.arrow"
    assert main([*where, "export", "t", str(file)]) == 2
    assert "jsonl" in capsys.readouterr().err
    assert not file.exists()


def test_every_command_of_the_list_is_there() -> None:
    listed = (
        "serve ls create ensure configure describe edit drop append read tail delete trim lag "
        "queue router consumer "
        "txn export import verify repair bench doctor config completion console reload context "
        "remote backup restore clone version"
    )
    assert {verb.split()[0] for verb in [*COMMANDS, *LOCAL_COMMANDS, "context", "version"]} == set(
        listed.split()
    )


def test_exit_codes_of_every_kind(cli: Run, topic: str) -> None:
    assert cli("append", topic, stdin=b"1\n")[0] == 0
    for absent in (
        ("describe", "none"),
        ("lag", "none"),
        ("tail", "none"),
        ("export", "none"),
        ("queue", "stats", "none"),
        ("queue", "peek", "none"),
        ("router", "show", "none"),
        ("consumer", "create", "none", "c"),
        ("consumer", "peek", topic, "none"),
        ("consumer", "commit", topic, "none", "1"),
    ):
        assert cli(*absent)[0] == 3, absent
    for refused in (
        ("queue", "peek", topic),
        ("create", topic),
    ):
        assert cli(*refused)[0] == 1, refused
    for wrong in (
        ("create", "no/name"),
        ("create", topic, "--set", "no_field=1"),
        ("router", "create", "r", topic, topic),
        ("read", topic, "--tag", "a*b*"),
        ("--url", "ftp://h", "--data-dir", "", "ls"),
    ):
        assert cli(*wrong)[0] == 2, wrong


def test_one_place_at_a_time(tmp_path: Path, capsys: Any) -> None:
    assert main(["--url", "http://h", "--data-dir", str(tmp_path), "ls"]) == 2
    assert main(["--url", "ftp://h", "ls"]) == 2
    assert main(["--url", "http://127.0.0.1:1", "repair"]) == 2
    assert "stop the server" in capsys.readouterr().err


def test_damage_is_told_by_a_server_too(own_server: Server, capsys: Any) -> None:
    own_server.start()
    where = ["--url", own_server.url]
    with te.connect(own_server.url) as db:
        db.topic("t", durability="fsync").append([{"text": f"record {n:03}"} for n in range(50)])
        db.checkpoint()
    assert main([*where, "verify"]) == 0
    found = [p for p in own_server.data_dir.rglob("*") if p.is_file()]
    (held,) = [p for p in found if p.suffix == ".data" and p.stat().st_size]
    raw = bytearray(held.read_bytes())
    raw[len(raw) // 2] ^= 1
    held.write_bytes(raw)
    capsys.readouterr()
    assert main([*where, "verify"]) == 4
    report = json.loads(capsys.readouterr().out)
    assert report["problems"][0]["file"].endswith(held.name)
    own_server.kill()
    assert main(["--data-dir", str(own_server.data_dir), "verify"]) == 4


def test_commands_on_a_directory_that_is_served_go_to_its_server(
    own_server: Server, capsys: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_server.start()
    where = ["--data-dir", str(own_server.data_dir)]
    assert main([*where, "create", "orders"]) == 0
    assert main([*where, "create", "jobs", "--set", "type=queue"]) == 0
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"1\n")))
    assert main([*where, "append", "jobs"]) == 0
    # Its leases last: they are the server's.
    assert main([*where, "queue", "claim", "jobs"]) == 0
    capsys.readouterr()
    assert main([*where, "ls"]) == 0
    listed = [json.loads(line)["topic"] for line in capsys.readouterr().out.splitlines()]
    assert listed == ["jobs", "orders"]
    assert main([*where, "--complete-names", "topic", "or"]) == 0
    assert capsys.readouterr().out == "orders\n"
    # What needs the directory itself says so.
    assert main([*where, "remote", "forget", "--yes"]) == 1
    assert f"stop the server at {own_server.url}" in capsys.readouterr().err
    assert main([*where, "backup", str(tmp_path / "copy")]) == 1
    told = capsys.readouterr().err
    assert f"--url {own_server.url}" in told
    assert "backup_dir" in told


def test_what_to_do_is_said(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(sys.modules["topics_engine.cli.main"], "DEADLINE", 0.1)
    assert main(["--url", "127.0.0.1:1", "ls"]) == 1
    assert "topics serve" in capsys.readouterr().err
    assert "TOPICS_API_KEY" in str(advice_for(te.Unauthorized("m"), "ls"))
    assert "process 7" in str(advice_for(te.Locked("m", detail={"pid": 7}), "ls"))
    assert advice_for(te.Conflict("m", "head_mismatch"), "ls") is None


def test_a_server_is_examined(hot_server: Server, capsys: Any) -> None:
    assert main(["--url", hot_server.url, "doctor"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["url"], facts["status"]) == (hot_server.url, "ready")
    assert facts["version"] == te.__version__
    assert 0 < facts["round_trip_p50_ms"] <= facts["round_trip_p99_ms"]
    assert facts["fsync_p50_ms"] <= facts["fsync_p99_ms"]
    assert (facts["read_only_shards"], facts["corrupt_records"]) == (0, 0)
    assert facts["advice"]


def test_advice_about_servers() -> None:
    well = {"round_trip_p50_ms": 0.2, "fsyncs": 9, "pressure": 0.1}
    assert "good health" in advice_on_server(well)
    for sick, word in (
        ({"read_only_shards": 1}, "disk"),
        ({"corrupt_records": 2}, "verify"),
        ({"pressure": 0.9}, "overloaded"),
        ({"round_trip_p50_ms": 30.0}, "far away"),
        ({"fsyncs": 0}, "bench"),
        (
            {"packs": 1200, "remote_state": "ok"},
            "1,200 packs in the object store were not looked at",
        ),
        ({"packs": 1, "remote_state": "refused"}, "its object store is refused: the log says why"),
        ({"remote_state": "failing", "remote_reason": "no route"}, "store is failing: no route"),
    ):
        assert word in advice_on_server(well | sick), sick


def test_settings_of_the_command_line(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOPICS_API_KEY", "s3cret")
    monkeypatch.delenv("TOPICS_URL", raising=False)
    assert main(["config", "--url", "http://h:1"]) == 0
    out = capsys.readouterr().out
    rows = {row["setting"]: row for row in map(json.loads, out.splitlines())}
    assert (rows["url"]["value"], rows["url"]["source"]) == ("http://h:1", "argument")
    assert rows["api_key"]["source"] == "environment TOPICS_API_KEY"
    assert "s3cret" not in out


def slowly(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """A terminal as stderr, and a clock by which everything takes long."""
    screen, seconds = Terminal(), itertools.count(0.0, 2.0)
    monkeypatch.setattr("topics_engine.cli.output.time.monotonic", lambda: next(seconds))
    monkeypatch.setattr(sys, "stderr", screen)
    return screen


@pytest.mark.parametrize(
    ("command", "bar"),
    [
        (["append", "t"], "append"),
        (["import", "t", "FILE"], "import"),
        (["export", "t", "OUT"], "export █"),
        (["read", "t", "--limit", "2"], "read █"),
        (["bench", "--records", "3000"], "batches of 1000 █"),
        (["verify"], "verify █"),
        (["doctor"], "doctor █"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_what_takes_long_shows_a_bar(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, command: list[str], bar: str
) -> None:
    with te.open(tmp_path / "data") as db:
        db.topic("t").append([1, 2])
    lines = tmp_path / "in.jsonl"
    lines.write_bytes(LINES)
    names = {"FILE": str(lines), "OUT": str(tmp_path / "out.jsonl")}
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"1\n2\n")))
    screen = slowly(monkeypatch)
    where = ["--data-dir", str(tmp_path / "data")]
    assert main([*where, *(names.get(word, word) for word in command)]) == 0
    assert bar in screen.getvalue()
    # The last thing is that it is wiped away.
    assert screen.getvalue().endswith(" \r")
    for line in capsys.readouterr().out.splitlines():
        json.loads(line)


def test_a_bar_is_for_a_terminal_and_for_more_than_a_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0]
    monkeypatch.setattr("topics_engine.cli.output.time.monotonic", lambda: now[0])
    terminal, file = Terminal(), io.StringIO()
    for stream in (terminal, file):
        checked = Checked(stream)
        now[0] = 0.0
        checked(0, 0, 40, 0)
        now[0] = 0.9
        checked(1, 5, 40, 0)
        assert stream.getvalue() == ""
        now[0] = 2.0
        checked(3, 10, 40, 1)
        checked.end()
    assert " 25%        10         5/s 3 files, 1 problems" in terminal.getvalue()
    assert file.getvalue() == ""


def test_of_what_tells_nothing_the_seconds_are_shown() -> None:
    screen = Terminal()
    waiting = ElapsedTime("verify", screen, every=0.0)
    # As if it had begun a while ago.
    waiting._progress._started -= 5
    with waiting:
        until(screen.getvalue, 2 * DEADLINE)
    assert "verify" in screen.getvalue()
    assert screen.getvalue().endswith("\r")


def test_a_total_that_is_not_known_is_not_made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = slowly(monkeypatch)
    progress = Progress("load")
    progress.show(10)
    assert "load        10" in screen.getvalue()
    assert "%" not in screen.getvalue()
    assert "█" not in screen.getvalue()


def test_a_terminal_gets_tables_unless_it_asks_for_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = ["--data-dir", str(tmp_path / "data")]
    with te.open(tmp_path / "data") as db:
        db.topic("orders").append([1, 2])
        db.queue("jobs").append(1)
        db.topic("orders").consumer("billing")
    monkeypatch.setenv("NO_COLOR", "1")
    for command, head in (
        (["ls"], "topic"),
        (["lag"], "topic   consumer"),
        (["queue", "stats"], "queue  ready"),
        (["config"], "setting"),
    ):
        screen = Terminal()
        monkeypatch.setattr(sys, "stdout", screen)
        assert main([*where, *command]) == 0
        assert screen.getvalue().startswith(head), screen.getvalue()
        screen = Terminal()
        monkeypatch.setattr(sys, "stdout", screen)
        assert main([*where, *command, "--json"]) == 0
        assert all(json.loads(line) for line in screen.getvalue().splitlines())
