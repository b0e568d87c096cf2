"""Every command: its help, what a terminal and a pipe get, its exit code."""

from __future__ import annotations

import argparse
import io
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import topics_engine as te
from support.pty import terminal
from support.server import Server
from topics_engine.cli import main
from topics_engine.cli.arguments import parser
from topics_engine.cli.exits import Exit


@dataclass(frozen=True)
class Row:
    """A command line. `{t}` is a log with three records and a consumer `c`, `{q}` a queue with two
    jobs, `{r}` a router from `{t}`, `{f}` a file in a folder.
    """

    line: str
    shows: str
    """What a terminal shows, besides other things."""
    keys: str = ""
    """Keys of the first JSON line; empty if nothing is printed."""
    code: int = 0
    stdin: bytes = b""
    only: str = ""
    """`server` or `directory`, where the other has an answer of its own."""


ROWS = (
    Row("ls {t}", "head_seq", "topic type head_seq earliest_seq count bytes durability"),
    Row("create {t}-new --durability fsync --set ttl=60", "fsync", "topic config"),
    Row("create {t}", "", "", 1),
    Row("ensure {t} --set ttl=0s", "0.0", "topic config"),
    Row("configure {t} --set ttl=2w", "1209600.0", "topic config"),
    Row("describe {t}", "head_seq", "topic head_seq config"),
    Row("drop {q} --yes", "deleted", "topic deleted"),
    Row("drop {t} --if-empty", "", "", 1),
    Row("delete {t} --before 3 --yes", "deleted", "topic deleted earliest_seq head_seq count"),
    Row("delete {t} --seqs 1 3 --yes", "deleted", "topic deleted earliest_seq head_seq count"),
    Row("delete {t} --seqs 1 --tag a --yes", "", "", 2),
    Row("delete {t} --seqs one", "", "", 2),
    Row("delete {t}", "", "", 2),
    Row("trim {t} 1 --yes", "deleted", "topic deleted earliest_seq head_seq count"),
    Row("trim {t}", "", "", 2),
    Row("append {t}", "last_seq", "topic first_seq last_seq count", stdin=b"1\n2\n"),
    Row("append {t}", "", "", 2, stdin=b"{\n"),
    Row("read {t} --limit 1", '{"n":1}', "$seq $ts $tag data"),
    Row("read {t} --since 1h --until 2999-01-01T00:00Z --tag a:*", '{"n":1}', "$seq data"),
    Row("read {t} --since yesterday", "", "", 2),
    Row("read {t} --after 1 --since 1h", "", "", 2),
    Row("read {t}-absent", "", "", 3),
    Row("tail {t} -n 1", "<2 bytes, base64>", "$seq data_b64"),
    Row("tail {t}*", "{t}", "topic $seq"),
    Row("tail {t}-absent*", "", "", 3),
    Row("lag {t}", "consumer", "topic consumer mode cursor lag lag_seconds"),
    Row("queue stats {q}", "ready", "queue ready in_flight delayed dead"),
    Row("queue peek {q}", '"job-1"', "$seq state deliveries data"),
    Row(
        "queue claim {q} --worker w --lease 90s",
        '"job-1"',
        "$seq job deliveries deadline data",
        only="server",
    ),
    Row("queue claim {q}", "", "", 2, only="directory"),
    Row("queue claim {t}", "", "", 1, only="server"),
    Row("queue claim {q} --lease long", "", "", 2),
    Row("queue ack {q} 1:1", "acked", "queue acked lost", 1),
    Row("queue ack {q} one", "", "", 2),
    Row("queue nack {q} 1:1 --delay 5s", "nacked", "queue nacked lost", 1),
    Row("queue nack {q} 1:1 --error why", "nacked", "queue nacked lost", 1),
    Row("queue release {q} 1:1", "released", "queue released lost", 1),
    Row("queue release {q} one", "", "", 2),
    Row("queue remove {q} 1 9", "removed", "queue removed skipped"),
    Row("queue promote {q} 1", "promoted", "queue promoted skipped"),
    Row("queue remove {t} 1", "", "", 1),
    Row("queue redrive {q} --dry-run", "moved", "queue moved dry_run"),
    Row("queue pause {q}", "paused", "queue paused"),
    Row("queue pause {t}", "", "", 1),
    Row("queue resume {q}", "paused", "queue paused"),
    Row("consumer ls {t}", "consumer", "topic consumer mode cursor lag lag_seconds"),
    Row("consumer create {t} d --start latest", "cursor", "topic consumer mode cursor"),
    Row("consumer peek {t} c", '{"n":1}', "$seq data"),
    Row("consumer seek {t} c --to latest", "cursor", "topic consumer cursor"),
    Row("consumer seek {t} c --since 1h", "cursor", "topic consumer cursor"),
    Row("consumer seek {t} c", "", "", 2),
    Row("consumer commit {t} c 1", "cursor", "topic consumer cursor"),
    Row("consumer drop {t} c", "deleted", "topic consumer deleted"),
    Row("router ls {r}", "guarantee", "router source dest guarantee"),
    Row("router show {r}", "source", "router source dest"),
    Row("router create {r}-new {t} {t}-e --tag a:*", "source", "router source dest tag"),
    Row("router create {r}-loop {t} {t}", "", "", 2),
    Row("router drop {r}", "deleted", "router deleted"),
    Row("txn forget w", "forgotten", "writer forgotten"),
    Row("export {t} {f}.jsonl", "records", "topic file records gaps"),
    Row("export {t} {f}.csv", "records", "topic file records gaps"),
    Row("export {t} {f}.xlsx", "", "", 2),
    Row("export {t}", '{"n":1}', "$seq data"),
    Row("import {t}", "count", "topic count gaps_passed_over", stdin=b'{"data":1}\n'),
    Row("import {t} {f}-none.csv", "", "", 1),
    Row("verify", "ok", "ok problems"),
    Row("repair", "ok", "ok problems", only="directory"),
    Row("repair", "", "", 2, only="server"),
    Row("doctor", "fdatasync_p50_ms", "directory fdatasync_p50_ms advice", only="directory"),
    Row("doctor", "round_trip_p50_ms", "url status advice", only="server"),
    Row("bench --records 1000", "batch_1000_records_per_s", "where single_p50_us"),
    Row("config", "TOPICS_URL", "setting value source variable"),
    Row("completion fish", "complete -c topics"),
    Row("completion tcsh", "", "", 2),
    Row("version", te.__version__, "topics python platform"),
    Row("reload", "", "", 1, only="directory"),
    Row("reload", "", "", 2, only="server"),
    Row("context ls", "api_key_file"),
    Row("context use none-such", "", "", 3),
    Row("context rm none-such", "", "", 3),
    Row("console --no-browser", "/console", "console", only="server"),
    Row("console --no-browser", "", "", 3, only="directory"),
    Row("serve", "", "", 2, only="server"),
    Row("nonsense", "", "", 2),
)

ELSEWHERE = {
    "backup": "../client/test_backup.py",
    "clone": "../client/test_backup.py",
    "restore": "../client/test_restore.py",
    "edit": "test_edit.py",
    "context add": "test_contexts.py",
    "remote status": "test_remote.py",
    "remote forget": "test_remote.py",
    "serve": "test_serve_errors.py",
}
"""Commands with more to them than a row says."""


def commands(of: argparse.ArgumentParser, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The commands of the parser, each with its words."""
    below = [a for a in of._actions if isinstance(a, argparse._SubParsersAction)]
    if not below:
        yield path
    for action in below:
        for name, inner in action.choices.items():
            yield from commands(inner, (*path, name))


EVERY = list(commands(parser()))


def test_every_command_has_a_row() -> None:
    rows = {row.line for row in ROWS}
    for words in EVERY:
        command = " ".join(words)
        has_row = any(line == command or line.startswith(f"{command} ") for line in rows)
        assert has_row or (Path(__file__).parent / ELSEWHERE[command]).exists(), command


@pytest.mark.parametrize("words", EVERY, ids=" ".join)
def test_every_command_has_help(words: tuple[str, ...], capsys: Any) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*words, "--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"usage: topics {' '.join(words)} ")
    # Of each argument there is a word, but for names of things.
    assert len(shown.splitlines()) > 4


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("consumers", "topics: there is no command 'consumers'; did you mean `consumer`?"),
        ("queue claims", "topics queue: there is no command 'claims'; did you mean `claim`?"),
        ("xyz", "topics: there is no command 'xyz': `topics -h` lists them"),
        ("queue xyz", "topics queue: there is no command 'xyz': `topics queue -h` lists them"),
    ],
)
def test_a_command_that_does_not_exist(line: str, message: str, capsys: Any) -> None:
    with pytest.raises(SystemExit) as ended:
        main(line.split())
    assert ended.value.code == Exit.USAGE
    assert capsys.readouterr().err == message + "\n"


@pytest.mark.parametrize(
    ("command", "rest", "message"),
    [
        ("configure", "t --ttl 5d", "--ttl 5d; it is an option of a topic: --set ttl=VALUE"),
        ("create", "t --cap-records=9", "--cap-records=9; it is an option of a topic: --set"),
        ("create", "t --tag a", "--tag a\n"),
        ("queue claim", "q w", "w\n"),
        ("ls", "--ttl=5d", "--ttl=5d\n"),
    ],
)
def test_an_argument_that_does_not_exist(
    command: str, rest: str, message: str, capsys: Any
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*command.split(), *rest.split()])
    assert ended.value.code == Exit.USAGE
    shown = capsys.readouterr().err
    assert shown.startswith(f"usage: topics {command} [-h]"), shown
    assert f"topics {command}: error: unrecognized arguments: {message}" in shown


@pytest.fixture(params=["directory", "server"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, list[str]]:
    """The kind of place, and the arguments that name it."""
    if request.param == "server":
        live: Server = request.getfixturevalue("hot_server")
        return "server", ["--url", live.url]
    return "directory", ["--data-dir", str(tmp_path / "data")]


def prepared(where: list[str], names: list[str], folder: Path) -> list[dict[str, str]]:
    """Makes what rows name, once for each name."""
    opened = te.connect(where[1]) if where[0] == "--url" else te.open(where[1])
    made = []
    with opened as db:
        for name in names:
            of = {"t": f"{name}-t", "q": f"{name}-q", "r": f"{name}-r", "f": str(folder / name)}
            made.append(of)
            topic = db.topic(of["t"])
            topic.append([{"n": 1}, {"n": 2}], tag="a:1")
            topic.append(b"\xff\xfe")
            topic.consumer("c")
            db.queue(of["q"]).append(["job-1", "job-2"])
            db.router(of["r"], of["t"], of["t"] + "-dest")
    return made


def run(line: list[str], stdin: bytes, monkeypatch: pytest.MonkeyPatch, out: Any) -> int:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
    monkeypatch.setattr(sys, "stdout", out)
    try:
        return main(line)
    except SystemExit as ended:
        return int(str(ended.code))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.line)
def test_every_row_on_a_terminal_and_in_a_pipe(
    row: Row,
    where: tuple[str, list[str]],
    tmp_path: Path,
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Any,
) -> None:
    kind, place = where
    if row.only not in ("", kind):
        pytest.skip(f"for a {row.only}")
    monkeypatch.delenv("NO_COLOR", raising=False)
    ways = ("terminal", "pipe")
    every = prepared(place, [f"{topic[:20]}{way}" for way in ways], tmp_path)
    for shown_on, names in zip(ways, every, strict=True):
        line = [*place, *(word.format(**names) for word in row.line.split())]
        shows = row.shows.replace("{t}", names["t"])
        capsys.readouterr()
        if shown_on == "terminal":
            with terminal() as screen:
                code = run(line, row.stdin, monkeypatch, screen.stream)
                text = screen.text()
            assert shows in text if row.code == 0 or row.keys else not text, text
            # Colours of a table's head, and of what is less important; a file has none.
            assert not row.keys or row.line == "export {t}" or "\x1b[" in text, text
        else:
            pipe = io.TextIOWrapper(io.BytesIO(), write_through=True)
            code = run(line, row.stdin, monkeypatch, pipe)
            text = pipe.buffer.getvalue().decode()  # type: ignore[attr-defined]
            assert "\x1b[" not in text
            if row.keys:
                first = json.loads(text.splitlines()[0])
                assert set(row.keys.split()) <= set(first), first
        assert code == row.code, (text, capsys.readouterr().err)
        error = capsys.readouterr().err
        assert "Traceback" not in error
        if row.code:
            assert error, "an exit code other than 0 says why"
