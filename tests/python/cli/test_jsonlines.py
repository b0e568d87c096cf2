"""JSON lines of `append` and `import`: one grammar, and where to go on after a failure."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import topics_engine as te
from support.terminal import Run
from topics_engine.cli import main
from topics_engine.cli.send import batches
from topics_engine.client.database import Database

Told = Callable[..., tuple[int, str]]
"""Runs a command with this input; its exit code and what it printed on stderr."""


@pytest.fixture
def told(cli: Run, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> Told:
    where = cli.where  # type: ignore[attr-defined]

    def run(*arguments: str, stdin: bytes = b"") -> tuple[int, str]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        capsys.readouterr()
        code = main([*where, *arguments])
        return code, capsys.readouterr().err

    return run


def data_of(cli: Run, topic: str) -> list[Any]:
    return [record["data"] for record in cli("read", topic)[1]]


def wrapped(value: bytes) -> bytes:
    """A payload as a line that `import` takes."""
    return b'{"data":' + value + b"}"


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("command", ["append", "import"])
def test_lines_that_are_read(cli: Run, topic: str, command: str, mark: bytes) -> None:
    values = (b"1", b'"a\xe2\x80\xa8b"', b"123456789012345678901234567890", b"[]", b"null")
    lines = [wrapped(value) if command == "import" else value for value in values]
    text = mark + lines[0] + b"\r\n\r\n  \t\n " + b" \n\t".join(lines[1:])
    assert cli(command, topic, stdin=text)[1][0]["count"] == 5
    assert data_of(cli, topic) == [1, "a\u2028b", 123456789012345678901234567890, [], None]


NOT_JSON = {
    b"NaN": "not valid JSON",
    b"-Infinity": "not valid JSON",
    b"01": "not valid JSON",
    b"[1,]": "not valid JSON",
    b'"\xff"': "invalid UTF-8",
    b'"\xed\xa0\x80"': "invalid UTF-8",
    b'"a\tb"': "control character",
    b"\xef\xbb\xbf1": "not valid JSON",
    b"\xc2\xa01": "not valid JSON",
    b"[" * 200 + b"]" * 200: "nesting",
}
NO_RECORD = {
    b"1": "neither a record nor a gap",
    b'{"id":1}': "topics append",
    b'{"data":1,"$tag":5}': "$tag is not a string",
    b'{"data":1,"$node":"\\ud800"}': "unpaired surrogate",
    b'{"data":1,"meta":{"a":1}}': "meta",
    b'{"data_b64":"*"}': "data_b64 is not base64",
    b'{"data":1},{"data":2}': "not valid JSON",
    b'{"data":1,"data"}': "not valid JSON",
}


@pytest.mark.parametrize(
    ("command", "line", "says"),
    [
        *(("append", line, says) for line, says in NOT_JSON.items()),
        ("append", b"1},{2", "--raw"),
        *(("import", wrapped(line), says) for line, says in NOT_JSON.items()),
        *(("import", line, says) for line, says in NO_RECORD.items()),
    ],
)
def test_a_line_is_refused_by_its_number(
    cli: Run, told: Told, topic: str, command: str, line: bytes, says: str
) -> None:
    good = b"0" if command == "append" else wrapped(b"0")
    code, error = told(command, topic, stdin=good + b"\n\n" + line + b"\n" + good)
    assert (code, "line 3: " in error, says in error) == (2, True, True), error
    assert "1 records are stored, up to line 1: go on with --skip-lines 1" in error
    assert "server" not in error
    assert data_of(cli, topic) == [0]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be", "utf-32"])
@pytest.mark.parametrize("command", ["append", "import"])
def test_another_encoding_is_named(told: Told, topic: str, command: str, encoding: str) -> None:
    text = "\ufeff" * (encoding == "utf-16-be") + '{"data":1}\n'
    code, error = told(command, topic, stdin=text.encode(encoding))
    assert (code, "iconv" in error, "nothing was stored" in error) == (2, True, True), error


def test_a_run_goes_on_where_the_last_one_ended(cli: Run, told: Told, topic: str) -> None:
    lines = [b"%d\n" % n for n in range(1, 2001)]
    wrong = [*lines[:1700], b"oops\n", *lines[1700:]]
    code, error = told("append", topic, stdin=b"".join(wrong))
    assert code == 2
    assert "line 1701" in error
    assert "1,700 records are stored, up to line 1700: go on with --skip-lines 1700" in error
    mended = b"".join(lines)
    assert told("append", topic, "--skip-lines", "1700", stdin=mended) == (0, "")
    assert data_of(cli, topic) == list(range(1, 2001))
    # A skipped line is not looked at.
    assert told("append", topic, "--skip-lines", "1701", stdin=b"".join(wrong)) == (0, "")


def test_a_key_keeps_lines_from_being_stored_twice(cli: Run, told: Told, topic: str) -> None:
    code, error = told("append", topic, "--key", "k", stdin=b"1\n2\n{\n")
    assert (code, "2 records are stored, up to line 2" in error) == (2, True)
    assert "run it again with the same --key" in error
    code, (said,) = cli("append", topic, "--key", "k", stdin=b"1\n2\n3\n4\n")
    assert (code, said["count"], said["deduped"]) == (0, 2, 2)
    assert data_of(cli, topic) == [1, 2, 3, 4]
    code, error = told("append", topic, "--key", "k", stdin=b"1\n5\n")
    assert (code, "line 2: " in error, "idempotency_mismatch" in error) == (1, True, True)
    with pytest.raises(SystemExit):
        told("append", topic, "--key", "k", "--batch", "2")
    with pytest.raises(SystemExit):
        told("append", topic, "--key", "k" * 201)


def test_what_the_engine_refuses_has_its_line_too(cli: Run, told: Told, topic: str) -> None:
    long_tag = b'{"data":1,"$tag":"%b"}\n' % (b"x" * 300)
    code, error = told("import", topic, "--batch", "2", stdin=wrapped(b"1") + b"\n" + long_tag)
    assert (code, "line 2: tag is 300 bytes" in error) == (1, True), error
    assert "nothing was stored" in error
    assert cli("read", topic)[0] == 3


def test_rows_of_other_files_are_numbered(cli: Run, told: Told, topic: str, tmp_path: Path) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    columns = tmp_path / "rows.parquet"
    table = pa.table({"data": ["1", "2", None, "4"], "gap_to": [None, 5, None, None]})
    parquet.write_table(table, columns)
    code, error = told("import", topic, str(columns))
    assert (code, "row 3: " in error) == (2, True), error
    assert told("import", topic, str(columns), "--skip-lines", "3")[0] == 0
    text = tmp_path / "rows.csv"
    text.write_bytes(b'a,b\n1,"x\ny"\n\xff,2\n3,4\n')
    code, error = told("import", topic, str(text))
    assert (code, "line 4 is not UTF-8" in error) == (2, True), error
    assert "1 records are stored, up to line 3: go on with --skip-lines 3" in error
    assert told("import", topic, str(text), "--skip-lines", "4")[0] == 0
    assert data_of(cli, topic) == [4, {"a": "1", "b": "x\ny"}, {"a": "3", "b": "4"}]


@pytest.mark.parametrize(
    ("failure", "says"),
    [
        (te.Unreachable("gone", detail={"outcome": "not_sent"}), "up to line 2: go on with"),
        (te.Unreachable("gone", detail={"outcome": "unknown"}), "whether lines 3 to 4 is, too"),
        (te.Unavailable("poisoned"), "whether lines 3 to 4 is, too, is not known: go on with"),
        (te.Throttled("slow"), "up to line 2: go on with --skip-lines 2"),
        (KeyboardInterrupt(), "--skip-lines 2, or 4 if `topics tail"),
    ],
)
def test_an_outcome_that_is_not_known_is_not_claimed(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch, failure: BaseException, says: str
) -> None:
    calls = 0

    class Failing:
        """A backend whose second append fails."""

        def __init__(self, inner: Any) -> None:
            self._inner = inner

        def __getattr__(self, name: str) -> Any:
            return getattr(self._inner, name)

        def append(self, *args: Any, **how: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == 2:
                raise failure
            return self._inner.append(*args, **how)

    def connected(*args: Any, **how: Any) -> Database:
        db = te.open(tmp_path / "data")
        db._backend = Failing(db._backend)  # type: ignore[assignment]
        return db

    monkeypatch.setattr(sys.modules["topics_engine.cli.main"], "connect", connected)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"1\n2\n3\n4\n5\n")))
    assert main(["append", "t", "--batch", "2"]) in (1, 130)
    error = capsys.readouterr().err
    assert "2 records are stored" in error
    assert says in error, error


def test_what_comes_before_an_error_is_a_batch() -> None:
    def records() -> Any:
        for number in range(1, 6):
            yield number, (b"x", False, None, None, None, 0)
        raise ValueError("line 6")

    seen = []
    with pytest.raises(ValueError, match="line 6"):
        seen.extend(len(batch) for batch in batches(records(), 2))
    # `extend` keeps what it got before the error.
    assert seen == [2, 2, 1]
