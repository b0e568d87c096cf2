"""The commands, on a server and on a directory: the same words, the same exit codes."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import signal
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import topics_engine as te
from support.processes import child
from support.pty import terminal
from support.server import UNFINISHED, Server
from support.terminal import Run, Terminal
from support.waiting import DEADLINE
from topics_engine.cli import main
from topics_engine.cli.measure import advice, percentile
from topics_engine.cli.output import Output, Progress, Styled
from topics_engine.client import Gap, Record


def test_append_read_and_tail(cli: Run, topic: str) -> None:
    lines = b'{"a":1.00}\n\n[2]\r\n"x"\n'
    code, (said,) = cli("append", topic, "--tag", "eu:1", "--batch", "2", stdin=lines)
    assert (code, said["first_seq"], said["last_seq"], said["count"]) == (0, 1, 3, 3)
    code, records = cli("read", topic)
    assert code == 0
    assert [(r["$seq"], r["data"], r["$tag"]) for r in records] == [
        (1, {"a": 1.0}, "eu:1"),
        (2, [2], "eu:1"),
        (3, "x", "eu:1"),
    ]
    assert [r["$seq"] for r in cli("read", topic, "--after", "1", "--limit", "1")[1]] == [2]
    assert [r["$seq"] for r in cli("tail", topic, "-n", "2")[1]] == [2, 3]
    more = b"".join(b"%d\n" % n for n in range(2600))
    assert cli("append", topic, stdin=more)[1][0]["last_seq"] == 2603
    assert [r["data"] for r in cli("tail", topic, "-n", "2500")[1]] == list(range(100, 2600))
    assert cli("read", topic, "--tag", "us:*") == (0, [])


def test_numbers_are_printed_as_they_were_written(cli: Run, topic: str, capsys: Any) -> None:
    odd = b'{"big":123456789012345678901234567890,"float":1.50e+3,"twice":1,"twice":2}\n'
    assert cli("append", topic, stdin=odd)[0] == 0
    text: list[str] = []
    original = Output.line
    Output.line = lambda self, line: text.append(line)  # type: ignore[method-assign]
    try:
        assert cli("read", topic)[0] == 0
    finally:
        Output.line = original  # type: ignore[method-assign]
    assert odd.decode().strip() in text[0]


def test_raw_lines_are_bytes(cli: Run, topic: str) -> None:
    assert cli("append", topic, "--raw", stdin=b"\xff\x00\nplain\n")[0] == 0
    assert [r["data_b64"] for r in cli("read", topic)[1]] == ["/wA=", "cGxhaW4="]


def test_create_describe_and_ls(cli: Run, topic: str) -> None:
    code, (said,) = cli("create", topic, "--durability", "fsync", "--set", "ttl=60")
    assert (code, said["topic"], said["config"]["ttl"]) == (0, topic, 60.0)
    code, (state,) = cli("describe", topic)
    assert (code, state["config"]["ttl"], state["config"]["durability"]) == (0, 60.0, "fsync")
    assert cli("create", topic) == (1, [])
    assert cli("ensure", topic, "--set", "ttl=1m", "--durability", "fsync")[0] == 0
    assert cli("ensure", topic, "--set", "ttl=2m") == (1, [])
    code, (said,) = cli("configure", topic, "--set", "ttl=2m")
    assert (code, said["config"]["ttl"], said["config"]["durability"]) == (0, 120.0, "fsync")
    assert cli("ensure", topic, "--set", "ttl=2m")[0] == 0
    assert cli("configure", topic + "-absent")[0] == 3
    code, rows = cli("ls", topic)
    assert (code, [r["topic"] for r in rows]) == (0, [topic])


def test_exit_codes(cli: Run, topic: str) -> None:
    assert cli("create", topic)[0] == 0
    assert cli("describe", topic + "-absent")[0] == 3
    assert cli("read", topic + "-absent")[0] == 3
    assert cli("create", topic, "--set", "durability=perhaps")[0] == 2
    assert cli("configure", topic, "--set", "type=queue")[0] == 1
    assert cli("append", topic, stdin=b"{\n")[0] == 2
    with pytest.raises(SystemExit) as usage:
        cli("frobnicate")
    assert usage.value.code == 2


def test_verify(cli: Run, topic: str) -> None:
    assert cli("append", topic, stdin=b"1\n2\n")[0] == 0
    code, (report,) = cli("verify")
    assert (code, report["ok"], report["problems"]) == (0, True, [])


def test_bench_leaves_no_topic(cli: Run, topic: str) -> None:
    assert cli("create", topic)[0] == 0
    code, (figures,) = cli("bench", "--records", "3000")
    assert code == 0
    assert figures["batch_1000_records_per_s"] > 0
    assert figures["read_1000_records_per_s"] > 0
    assert cli("ls", "topics-bench-") == (0, [])


def test_verify_and_repair_of_a_damaged_directory(tmp_path: Path, capsys: Any) -> None:
    data = tmp_path / "data"
    where = ["--data-dir", str(data)]
    assert main([*where, "create", "t"]) == 0
    snapshot = sorted((data / "meta").glob("snapshot.*.bin"))[-1]
    snapshot.write_bytes(snapshot.read_bytes()[:-1] + b"\0\0")
    assert main([*where, "verify"]) == 4
    assert main([*where, "repair"]) == 4
    assert "--yes" in capsys.readouterr().out


def test_a_repair_says_first_what_is_lost_and_keeps_the_bytes(tmp_path: Path, capsys: Any) -> None:
    import shutil

    live, data = tmp_path / "live", tmp_path / "data"
    where = ["--data-dir", str(data)]
    with te.open(live) as db:
        t = db.topic("t", durability="fsync")
        for i in range(30):
            t.append({"text": f"record number {i:03}"})
        shutil.copytree(live, data, ignore=UNFINISHED)
        assert main(["--data-dir", str(live), "verify"]) == 0
    (log,) = [p for p in data.rglob("*.log") if b"record number 010" in p.read_bytes()]
    raw = bytearray(log.read_bytes())
    raw[raw.index(b"record number 010")] ^= 1
    log.write_bytes(raw)
    damaged = log.read_bytes()
    capsys.readouterr()
    assert main([*where, "repair"]) == 4
    lines = capsys.readouterr().out.splitlines()
    found, plan = json.loads(lines[0]), json.loads(lines[1])
    assert [Path(p["file"]).name for p in found["problems"]] == [log.name]
    assert [(g["topic"], g["from"], g["to"], g["reason"]) for g in plan["gaps"]] == [
        ("t", 11, 11, "corrupt")
    ]
    assert [x["offset"] for x in plan["losses"]] == [found["problems"][0]["offset"]]
    assert log.read_bytes() == damaged
    assert not (data / "damaged").exists()
    assert main([*where, "ls"]) == 4
    capsys.readouterr()
    assert main([*where, "repair", "--yes"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert json.loads(lines[1]) == plan
    (kept,) = [x.removeprefix("kept: ") for x in lines if x.startswith("kept: ")]
    assert b"ecord number 010" in (data / kept).read_bytes()
    assert json.loads(lines[-1])["ok"]
    with te.open(data) as db:
        items = list(db.topic("t").read(limit=100))
        gap = te.Gap("t", 11, 11, "corrupt", 1)
        assert [i for i in items if isinstance(i, te.Gap)] == [gap]
        seqs = [i.seq for i in items if isinstance(i, te.Record)]
        assert 11 not in seqs
        assert len(seqs) == len(set(seqs)) == 29
        assert [(g.first, g.last) for g in db.topic("t").state().gaps] == [(11, 11)]


Damage = Callable[[Path], None]


def contents(data: Path) -> dict[Path, str]:
    """The files of a directory, each with the hash of what is in it."""
    files = [p for p in data.rglob("*") if p.is_file() and p.name != ".topics.lock"]
    return {p: hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


def lose_store(data: Path) -> None:
    (data / "meta" / "STORE").unlink()


def lose_segment(data: Path) -> None:
    next(iter(sorted(data.glob("topics/*/*.data")))).unlink()


def cut_segment(data: Path) -> None:
    first = next(iter(sorted(data.glob("topics/*/*.data"))))
    first.write_bytes(first.read_bytes()[:-100])


def lose_log(data: Path) -> None:
    for file in data.glob("wal/*/*"):
        file.unlink()


@pytest.mark.parametrize(
    ("damage", "names", "lost"),
    [
        (lose_store, "meta/STORE", []),
        (lose_segment, ".data", [(1, 50)]),
        (cut_segment, ".data", [(49, 50)]),
        (lose_log, "wal/shard-00", [(51, 50 + 2**32)]),
    ],
)
def test_a_repair_has_a_way_out(
    tmp_path: Path, capsys: Any, damage: Damage, names: str, lost: list[tuple[int, int]]
) -> None:
    data = tmp_path / "data"
    where = ["--data-dir", str(data)]
    with te.open(data) as db:
        db.topic("t", durability="fsync").append([{"text": f"{n:04}"} for n in range(50)])
    damage(data)
    capsys.readouterr()
    assert main([*where, "read", "t"]) == 4
    refused = capsys.readouterr().err
    assert names in refused
    assert "topics repair" in refused
    assert main([*where, "verify"]) == 4
    before = contents(data)
    capsys.readouterr()
    assert main([*where, "repair"]) == 4
    plan = json.loads(capsys.readouterr().out.splitlines()[1])
    assert [(g["from"], g["to"]) for g in plan["gaps"]] == lost
    assert {g["reason"] for g in plan["gaps"]} <= {"corrupt"}
    assert any(names in x["file"] for x in [*plan["files"], *plan["losses"]])
    assert contents(data) == before
    assert main([*where, "repair", "--yes"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["ok"]
    with te.open(data) as db:
        t = db.topic("t")
        assert [(g.first, g.last, g.reason) for g in t.state().gaps] == [
            (*gap, "corrupt") for gap in lost
        ]
        gone = {n for first, last in lost for n in range(first, min(last, 50) + 1)}
        read = [r for r in t.read(limit=100) if isinstance(r, te.Record)]
        assert {r.seq: r.data for r in read} == {
            n: {"text": f"{n - 1:04}"} for n in range(1, 51) if n not in gone
        }
        assert t.append({"text": "next"}).last_seq > max([50, *(last for _, last in lost)])


def test_a_missing_directory_is_not_made(tmp_path: Path) -> None:
    for command in (["ls"], ["read", "t"], ["verify"], ["repair"]):
        assert main(["--data-dir", str(tmp_path / "typo"), *command]) == 3
    assert not (tmp_path / "typo").exists()


def test_nobody_at_the_url(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["topics_engine.cli.main"], "DEADLINE", 0.1)
    assert main(["--url", "http://127.0.0.1:1", "ls"]) == 1
    assert "127.0.0.1:1" in capsys.readouterr().err


def test_doctor_and_config(tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["--data-dir", str(tmp_path / "not-yet"), "doctor"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert 0 < facts["fdatasync_p50_ms"] <= facts["fdatasync_p99_ms"]
    assert facts["advice"]
    monkeypatch.setenv("TOPICS_MAX_BODY_BYTES", "1000")
    monkeypatch.setenv("TOPICS_API_KEYS", "secret")
    assert main(["config"]) == 0
    out = capsys.readouterr().out
    rows = {row["setting"]: row for row in map(json.loads, out.splitlines())}
    assert rows["max_body_bytes"]["value"] == 1000
    assert rows["max_body_bytes"]["source"] == "environment TOPICS_MAX_BODY_BYTES"
    assert rows["host"]["source"] == "default"
    assert "secret" not in out


def test_settings_come_from_four_places(tmp_path: Path) -> None:
    from topics_engine.asgi.settings import resolve
    from topics_engine.errors import InvalidRequest

    file = tmp_path / "topics.toml"
    file.write_text('host = "localhost"\nport = 1\nmax_body_bytes = 5\n')
    environment = {"TOPICS_PORT": "2", "TOPICS_MAX_BODY_BYTES": "6"}
    found = resolve({"port": 3, "host": None}, environment, file)
    assert (found.settings.host, found.settings.port) == ("localhost", 3)
    assert found.settings.max_body_bytes == 6
    assert found.sources["host"] == str(file)
    assert found.sources["data_dir"] == "default"
    for bad in ({"TOPICS_PORT": "x"}, {"TOPICS_PORT": "65536"}, {"TOPICS_PORT": "-1"}):
        with pytest.raises(InvalidRequest, match="port"):
            resolve({}, bad, file)
    with pytest.raises(InvalidRequest, match="none"):
        resolve({}, {}, tmp_path / "none")
    file.write_text("prot = 1\n")
    with pytest.raises(InvalidRequest, match="prot"):
        resolve({}, {}, file)


def test_a_limit_on_all_bodies_that_is_below_that_of_one_is_refused() -> None:
    from topics_engine.asgi.settings import resolve
    from topics_engine.errors import InvalidRequest

    resolve({"max_body_bytes": 5, "max_receiving_bytes": 5}, {})
    resolve({"max_body_bytes": 6, "max_receiving_bytes": 0}, {})
    resolve({"max_body_bytes": 0, "max_receiving_bytes": 5}, {})
    with pytest.raises(InvalidRequest) as refused:
        resolve({"max_body_bytes": 6}, {"TOPICS_MAX_RECEIVING_BYTES": "5"})
    assert "max_receiving_bytes (environment TOPICS_MAX_RECEIVING_BYTES)" in str(refused.value)
    assert "max_body_bytes (argument), which is 6 bytes" in str(refused.value)


def test_a_terminal_gets_a_table_and_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    screen = Terminal()
    out = Output(json_lines=False, stream=screen)
    out.rows(["topic", "count"], [{"topic": "a", "count": 12}, {"topic": "bcd", "count": 3}])
    out.tombstone(Gap("a", 1, 4, "ttl"))
    out.record(Record("a", 5, 0, None, None, None, b'"%b"' % (b"x" * 500), False))
    lines = screen.getvalue().splitlines()
    assert lines[1:3] == ["a         12", "bcd        3"]
    assert "\x1b[1m" in lines[0]
    assert "lost 1…4 (ttl)" in lines[3]
    assert "1970-01-01 00:00:00.000" in lines[4]
    assert "…" in lines[4]
    Output(json_lines=True, stream=screen).line(Styled("x", "1"))
    assert screen.getvalue().splitlines()[5] == "x"


def test_a_progress_bar_waits_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("topics_engine.cli.output.time.monotonic", lambda: now[0])
    screen = Terminal()
    progress = Progress("load", 100, screen)
    now[0] = 0.9
    progress.show(10)
    assert screen.getvalue() == ""
    now[0] = 2.0
    progress.show(50)
    assert " 50%" in screen.getvalue()
    progress.end()


def test_queues(cli: Run, topic: str) -> None:
    assert cli("create", topic, "--set", "type=queue", "--set", "max_deliveries=1")[0] == 0
    assert cli("append", topic, "--tag", "x", stdin=b'{"n":1.0}\n2\n')[0] == 0
    code, (stats,) = cli("queue", "stats", topic)
    assert (code, stats["queue"], stats["ready"], stats["dead"]) == (0, topic, 2, 0)
    assert topic in {row["queue"] for row in cli("queue", "stats")[1]}
    code, (job, _) = cli("queue", "peek", topic)
    assert (code, job["$seq"], job["state"], job["data"], job["$tag"]) == (
        (0, 1, "ready", {"n": 1.0}, "x")
    )
    assert cli("queue", "peek", topic, "--state", "dead") == (0, [])
    assert cli("queue", "redrive", topic, "--dry-run")[1] == [
        {"queue": topic, "moved": 0, "dry_run": True}
    ]
    assert cli("queue", "peek", topic + "-absent")[0] == 3


def test_consumers_and_lag(cli: Run, topic: str) -> None:
    assert cli("append", topic, stdin=b"1\n2\n3\n")[0] == 0
    code, (made,) = cli("consumer", "create", topic, "c", "--mode", "at_least_once")
    assert (code, made["cursor"]) == (0, 0)
    assert [r["data"] for r in cli("consumer", "peek", topic, "c", "--max", "2")[1]] == [1, 2]
    assert cli("consumer", "commit", topic, "c", "2")[1][0]["cursor"] == 2
    ((row,), of_all) = (cli("lag", topic)[1], cli("lag")[1])
    assert (row["consumer"], row["cursor"], row["lag"]) == ("c", 2, 1)
    assert (topic, "c") in {(r["topic"], r["consumer"]) for r in of_all}
    (listed,) = cli("consumer", "ls", topic)[1]
    assert listed | {"lag_seconds": 0} == row | {"lag_seconds": 0}
    assert cli("consumer", "seek", topic, "c", "--to", "earliest")[1][0]["cursor"] == 0
    assert cli("delete", topic, "--before", "3")[1][0]["deleted"] == 2
    assert [(r["cursor"], r["lag"]) for r in cli("lag", topic)[1]] == [(0, 1)]
    assert cli("delete", topic, "--before", "4")[1][0]["deleted"] == 1
    assert [(r["lag"], r["lag_seconds"]) for r in cli("lag", topic)[1]] == [(0, 0)]
    assert cli("consumer", "seek", topic, "none", "--to", "earliest")[0] == 3
    assert cli("consumer", "drop", topic, "c")[1][0]["deleted"] is True
    assert cli("lag", topic) == (0, [])
    with pytest.raises(SystemExit) as usage:
        cli("consumer", "seek", topic, "c")
    assert usage.value.code == 2


def test_routers(cli: Run, topic: str) -> None:
    source, dest, router = f"{topic}-s", f"{topic}-d", f"{topic}-r"
    assert cli("append", source, stdin=b"0\n")[0] == 0
    code, (made,) = cli("router", "create", router, source, dest, "--tag", "x:*")
    assert (code, made["source"], made["tag"]) == (0, source, "x:*")
    assert cli("router", "show", router)[1][0]["dest"] == dest
    assert [r["router"] for r in cli("router", "ls", topic)[1]] == [router]
    assert cli("router", "create", f"{router}2", dest, source)[0] == 1, "a cycle"
    assert cli("router", "drop", router)[1] == [{"router": router, "deleted": True}]
    assert cli("router", "show", router)[0] == 3


def test_tail_follows(hot_server: Server, topic: str) -> None:
    with te.connect(hot_server.url) as db:
        db.topic(topic).append([1, 2])
        command = [sys.executable, "-m", "topics_engine.cli", "--url", hot_server.url]
        with child([*command, "tail", "-f", "-n", "1", topic]) as follower:
            assert follower.stdout is not None
            assert json.loads(follower.stdout.readline())["data"] == 2
            db.topic(topic).append(b"3")
            assert json.loads(follower.stdout.readline())["data_b64"] == "Mw=="


def test_percentiles_and_advice() -> None:
    assert percentile([3, 1, 2], 0.5) == 2
    assert percentile([1], 0.99) == 1
    assert "RAM" in advice(1e-6, 1e-6)
    assert "slow" in advice(10e-3, 11e-3)
    assert "some syncs" in advice(0.2e-3, 9e-3)
    assert "fit" in advice(0.2e-3, 0.4e-3)


def test_a_job_is_claimed_and_finished_by_its_name(hot_server: Server, topic: str) -> None:
    def cli(*arguments: str) -> tuple[int, list[Any]]:
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            code = main(["--url", hot_server.url, "queue", *arguments])
        return code, [json.loads(line) for line in out.getvalue().splitlines()]

    with te.connect(hot_server.url) as db:
        db.queue(topic).append(["a", "b", "c"])
    code, jobs = cli("claim", topic, "--max", "3", "--worker", "w", "--lease", "5m", "--wait", "1s")
    assert (code, [job["data"] for job in jobs]) == (0, ["a", "b", "c"])
    first, second, third = (job["job"] for job in jobs)
    assert cli("claim", topic, "--worker", "v") == (0, [])
    assert cli("ack", topic, first, "--worker", "w") == (
        (0, [{"queue": topic, "acked": 1, "lost": 0}])
    )
    how = ("--worker", "w", "--delay", "1h", "--error", "no mail")
    assert cli("nack", topic, second, *how)[0] == 0
    (delayed,) = cli("peek", topic, "--state", "delayed")[1]
    assert (delayed["data"], delayed["error"]) == ("b", "no mail")
    # Somebody else's lease, and one that is over.
    assert cli("ack", topic, third, "--worker", "v")[0] == 1
    assert cli("ack", topic, first, third, "--worker", "w")[1][0]["lost"] == 1
    assert cli("promote", topic, "2", "9")[1] == [{"queue": topic, "promoted": 1, "skipped": 1}]
    assert cli("claim", topic, "--worker", "w")[1][0]["data"] == "b"
    assert cli("release", topic, first, "--worker", "w")[0] == 1
    with te.connect(hot_server.url) as db:
        db.queue(topic).append(["d"])
    (fresh,) = cli("claim", topic, "--worker", "w")[1]
    assert (fresh["data"], fresh["deliveries"]) == ("d", 1)
    released = cli("release", topic, fresh["job"], "--worker", "w")
    assert released == (0, [{"queue": topic, "released": 1, "lost": 0}])
    (again,) = cli("claim", topic, "--worker", "w")[1]
    assert (again["data"], again["deliveries"]) == ("d", 1), "it was never begun"
    assert cli("ack", topic, again["job"], "--worker", "w")[0] == 0
    assert cli("remove", topic, "2")[1] == [{"queue": topic, "removed": 0, "skipped": 1}]
    assert cli("remove", topic, "2", "--force")[1][0]["removed"] == 1
    (stats,) = cli("stats", topic)[1]
    assert {stats[state] for state in ("ready", "in_flight", "delayed", "dead")} == {0}


def test_a_paused_queue_hands_out_nothing(hot_server: Server, topic: str, capsys: Any) -> None:
    with te.connect(hot_server.url) as db:
        queue = db.queue(topic)
        queue.append(1)
        assert main(["--url", hot_server.url, "queue", "pause", topic]) == 0
        assert queue.claim("w") == []
        assert main(["--url", hot_server.url, "queue", "resume", topic]) == 0
        assert len(queue.claim("w")) == 1
    states = [json.loads(line)["paused"] for line in capsys.readouterr().out.splitlines()]
    assert states == [True, False]


def test_records_of_a_time(cli: Run, topic: str) -> None:
    """The bounds are those of the records themselves, so that no clock has to wait."""
    found: dict[int, int] = {}
    while len(found) < 3:
        # The clock of the engine goes on at its own pace.
        assert cli("append", topic, stdin=b"%d\n" % len(found))[0] == 0
        last = cli("tail", topic, "-n", "1")[1][0]
        if last["$ts"] in found:
            assert cli("delete", topic, "--before", str(last["$seq"] + 1))[0] == 0
            found.clear()
        else:
            found[last["$ts"]] = last["data"]
    times = list(found)

    def read(*arguments: str) -> list[Any]:
        code, records = cli("read", topic, *arguments)
        assert code == 0
        return [record["data"] for record in records if "data" in record]

    assert read("--since", str(times[1])) == [1, 2]
    assert read("--until", str(times[1])) == [0]
    assert read("--since", str(times[1]), "--until", str(times[2])) == [1]
    iso = datetime.fromtimestamp(times[1] / 1000, UTC).isoformat()
    assert read("--since", iso) == [1, 2]
    assert read("--since", "1h") == [0, 1, 2]
    assert read("--until", "1h") == []
    assert read("--since", "2999-01-01T00:00Z") == []


def test_delete_and_drop(cli: Run, topic: str) -> None:
    assert cli("append", topic, "--tag", "a:1", stdin=b"1\n2\n")[0] == 0
    assert cli("append", topic, "--tag", "b:1", stdin=b"3\n")[0] == 0
    assert cli("delete", topic, "--tag", "a:*", "--before", "2")[1][0]["deleted"] == 1
    assert [r["data"] for r in cli("read", topic)[1] if "data" in r] == [2, 3]
    assert cli("drop", topic, topic + "-absent")[0] == 3
    assert cli("describe", topic)[0] == 3, "the first was dropped"


def test_follow_prints_records_of_patterns_and_of_topics_to_come(
    hot_server: Server, topic: str
) -> None:
    prefix = topic[:40]
    with te.connect(hot_server.url) as db:
        for name in ("a", "b"):
            db.topic(f"{prefix}-{name}").append([f"{name}{n}" for n in range(3)])
        command = [sys.executable, "-m", "topics_engine", "--url", hot_server.url]
        with child([*command, "tail", "-f", "-n", "1", f"{prefix}-*"]) as process:
            assert process.stdout is not None

            def shown(count: int) -> set[tuple[str, Any]]:
                lines = [json.loads(process.stdout.readline()) for _ in range(count)]
                return {(line["topic"][len(prefix) + 1 :], line["data"]) for line in lines}

            assert shown(2) == {("a", "a2"), ("b", "b2")}
            db.topic(f"{prefix}-a").append("a3")
            assert shown(1) == {("a", "a3")}
            db.topic(f"{prefix}-c").append("c0")
            assert shown(1) == {("c", "c0")}
            process.send_signal(signal.SIGINT)
            assert process.wait(2 * DEADLINE) == 130


def test_lag_is_watched_until_it_is_interrupted(hot_server: Server, topic: str) -> None:
    with te.connect(hot_server.url) as db:
        db.topic(topic).append([1, 2])
        consumer = db.topic(topic).consumer("c")
        command = [sys.executable, "-m", "topics_engine", "--url", hot_server.url]
        with child([*command, "lag", topic, "--watch", "0.05"]) as process:
            assert process.stdout is not None
            assert json.loads(process.stdout.readline())["lag"] == 2
            consumer.commit(2)
            while (row := json.loads(process.stdout.readline()))["lag"]:
                pass
            assert row["ts"] > 0
            process.send_signal(signal.SIGINT)
            assert process.wait(2 * DEADLINE) == 130


def test_a_wide_table_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = ["--data-dir", str(tmp_path / "data")]
    with te.open(tmp_path / "data") as db:
        db.topic("t").append("x" * 500, origin="node-1", meta={"k": "v"})
    for arguments, wide in ((["ls"], "effective_priority"), (["read", "t"], "x" * 500)):
        for more in ([], ["--wide"]):
            with terminal() as screen:
                monkeypatch.setattr(sys, "stdout", screen.stream)
                assert main([*place, *arguments, *more]) == 0
                text = screen.text()
            assert (wide in text) is bool(more), text
    assert "origin=node-1  k=v" in text
