"""Text of others on a terminal: it is shown, and has no effect."""

from __future__ import annotations

import io
import json
import sys
import unicodedata
from pathlib import Path
from typing import Any

import pytest

import topics_engine as te
from support.pty import terminal
from topics_engine.cli import main
from topics_engine.terminal import escaped

HOSTILE = "\x1b[2J\x1b]0;title\x07\x7f\x9b2J\u202e\u2066\u200b\ufeff\u2028\r\n\t"
HARMLESS = "h\u00e9llo \u65e5\u672c\u3000 \U0001f469\u200d\U0001f4bb \\ \u05e9"


def test_control_characters_are_escaped_and_nothing_else() -> None:
    assert escaped(HARMLESS) == HARMLESS
    assert escaped(HOSTILE) == (
        "\\u001b[2J\\u001b]0;title\\u0007\\u007f\\u009b2J\\u202e\\u2066\\u200b\\ufeff\\u2028\\r\\n\\t"
    )
    assert escaped("\ud800 \U000e0041") == "\\ud800 \\udb40\\udc41"
    assert escaped(escaped(HOSTILE)) == escaped(HOSTILE)
    for code in range(sys.maxunicode + 1):
        character = chr(code)
        shown = escaped(character)
        if unicodedata.category(character) in ("Cc", "Cs"):
            assert shown.isascii()
            assert shown.isprintable()
        if character not in '"\\':
            assert json.loads(f'"{shown}"') == character


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory in which every text that a writer chooses is hostile."""
    data = tmp_path_factory.mktemp("hostile") / "data"
    with te.open(data) as db:
        text = HOSTILE
        how: Any = {"tag": text, "origin": text, "meta": {text: text}}
        db.topic("t").append({"x": text}, **how)
        db.topic("t").append(b"\x1b[2J", **how)
        jobs = db.queue("q", max_deliveries=1, leases_durable=True)
        jobs.append([{"x": text}, 2, 3, 4, 5], tag=text)
        job, _ = jobs.claim(f"w{text}", 2)
        job.nack(error=text)
        db.topic("t").consumer("c")
    return data


@pytest.mark.parametrize("mode", [[], ["--wide"], ["--json"]])
@pytest.mark.parametrize(
    "line",
    [
        *("read t", "tail t q", "queue peek q", "consumer peek t c", "describe t", "ls"),
        *("queue stats", "lag", "export t", "export t --format csv", "queue claim q"),
    ],
)
def test_a_terminal_gets_no_control_character_of_a_writer(
    hostile: Path, line: str, mode: list[str], monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    with terminal() as shown:
        monkeypatch.setattr(sys, "stdout", shown.stream)
        assert main(["--data-dir", str(hostile), *mode, *line.split()]) == 0
        text = shown.text()
    for row in text.removesuffix("\n").split("\n"):
        assert escaped(row) == row
        if mode == ["--json"] and "csv" not in line:
            json.loads(row)


def test_a_pipe_gets_what_was_written(hostile: Path, capsys: Any) -> None:
    assert main(["--data-dir", str(hostile), "read", "t"]) == 0
    first, _ = (json.loads(line) for line in capsys.readouterr().out.split("\n")[:-1])
    assert (first["$tag"], first["meta"], first["data"]) == (
        HOSTILE, {HOSTILE: HOSTILE}, {"x": HOSTILE},
    )  # fmt: skip


def test_errors_and_questions_are_escaped(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = ["--data-dir", str(tmp_path / "data")]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"1\n")))
    assert main([*where, "append", "t\x1b[2J"]) == 2
    assert main([*where, "import", "t", "no\x9bfile.jsonl"]) == 1
    told = capsys.readouterr().err
    assert all(escaped(line) == line for line in told.removesuffix("\n").split("\n"))


def test_columns_are_not_written_to_a_terminal(
    hostile: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with terminal() as shown:
        monkeypatch.setattr(sys, "stdout", shown.stream)
        assert main(["--data-dir", str(hostile), "export", "t", "--format", "parquet"]) == 2
        assert shown.text() == ""
    assert "name a file" in capsys.readouterr().err
