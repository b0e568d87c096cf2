"""Contexts: named servers and directories."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest

from support.server import Server, opened
from topics_engine.cli import main


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, isolated: None) -> Path:
    """A user without contexts."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path


def lines(capsys: Any) -> list[Any]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_a_context_names_a_server_and_its_key(home: Path, capsys: Any) -> None:
    key = home / "key"
    key.write_text("s3cret-of-ops\n")
    with opened(home / "data", {"TOPICS_API_KEYS": "s3cret-of-ops"}) as server:
        arguments = ["--url", server.url, "--api-key-file", str(key)]
        assert main(["context", "add", "prod", *arguments]) == 0
        assert main(["create", "orders"]) == 0, "the first context is in use"
        capsys.readouterr()
        assert main(["--context", "prod", "ls"]) == 0
        assert [row["topic"] for row in lines(capsys)] == ["orders"]
        assert main(["--url", server.url, "ls"]) == 1, "--url goes without the context and its key"
        assert "TOPICS_API_KEY" in capsys.readouterr().err
        assert main(["config"]) == 0
        url = {row["setting"]: row for row in lines(capsys)}["url"]
        assert (url["value"], url["source"]) == (server.url, "context prod")
    file = home / "config" / "topics" / "contexts.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert "s3cret" not in file.read_text()
    assert list(file.parent.iterdir()) == [file]


def test_contexts_are_listed_used_and_removed(home: Path, capsys: Any) -> None:
    for name in ("a", "b"):
        assert main(["context", "add", name, "--data-dir", str(home / name)]) == 0
        assert main(["--context", name, "create", f"topic-of-{name}"]) == 0
    capsys.readouterr()
    assert main(["ls"]) == 0
    assert [row["topic"] for row in lines(capsys)] == ["topic-of-a"]
    assert main(["context", "use", "b"]) == 0
    assert main(["ls"]) == 0
    assert lines(capsys)[1]["topic"] == "topic-of-b"
    assert main(["context", "ls"]) == 0
    assert [(row["context"], row["current"]) for row in lines(capsys)] == [
        ("a", False),
        ("b", True),
    ]
    assert main(["context", "rm", "b"]) == 0
    capsys.readouterr()
    assert main(["ls"]) == 3, "no context is in use, and there is no ./topics-data"
    assert (home / "b").is_dir()
    assert main(["context", "use", "a"]) == 0
    assert main(["context", "use", "--none"]) == 0
    assert main(["ls"]) == 3


def test_what_is_named_otherwise_wins(home: Path, capsys: Any, monkeypatch: Any) -> None:
    for name in ("a", "b", "c", "d"):
        assert main(["--data-dir", str(home / name), "create", f"topic-of-{name}"]) == 0
    assert main(["context", "add", "a", "--data-dir", str(home / "a")]) == 0
    assert main(["context", "add", "d", "--data-dir", str(home / "d")]) == 0
    capsys.readouterr()

    def listed(*arguments: str) -> str:
        assert main([*arguments, "ls"]) == 0
        return str(lines(capsys)[0]["topic"])[-1]

    assert listed() == "a"
    monkeypatch.setenv("TOPICS_CONTEXT", "d")
    assert listed() == "d"
    monkeypatch.setenv("TOPICS_DATA_DIR", str(home / "b"))
    assert listed() == "b"
    assert listed("--data-dir", str(home / "c")) == "c"
    assert listed("--context", "a") == "a"
    assert main(["--context", "a", "--url", "http://h", "ls"]) == 2
    assert "--url and --context" in capsys.readouterr().err


def test_a_server_serves_its_directory_whatever_context_is_in_use(home: Path) -> None:
    assert main(["context", "add", "far", "--url", "http://127.0.0.1:1"]) == 0
    with Server(home / "data") as server:
        assert server.stop() == 0


def test_a_password_in_a_url_is_refused_and_not_repeated(home: Path, capsys: Any) -> None:
    for url in ("http://me:s3cret@h", "me:s3cret@h", "http://s3cret@h/x?y", "ftp://me:s3cret@h"):
        assert main(["context", "add", "x", "--url", url]) == 2
        told = capsys.readouterr()
        assert "user or a password" in told.err
        assert "s3cret" not in told.err + told.out
    assert not (home / "config").exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["add", "x"], "--url or --data-dir"),
        (["add", "x", "--url", "http://h", "--data-dir", "d"], "--url or --data-dir"),
        (["add", "x", "--url", "ftp://h"], "http://"),
        (["add", "x", "--url", "javascript:x"], "malformed"),
        (["add", "x", "--url", "file:///etc/passwd"], "http://"),
        (["add", "x", "--url", "//h"], "http://"),
        (["add", "x", "--url", "http://"], "http://"),
        (["add", "x", "--url", "http:///x"], "http://"),
        (["add", "x", "--url", "http://:80"], "http://"),
        (["add", "x", "--url", "http://[::1"], "malformed"),
        (["add", "x", "--url", "http://h:99999"], "malformed"),
        (["add", "x", "--url", "h:port"], "malformed"),
        (["add", "x", "--url", "http://h#f"], "fragment"),
        (["add", "x", "--url", "http://h?x=1"], "query"),
        (["add", "x", "--url", "http://h?"], "query"),
        (["add", "x", "--url", "http://h g"], "spaces"),
        (["add", "x", "--url", "http://h/a b"], "spaces"),
        (["add", "x", "--url", "http://h\nX: y"], "spaces"),
        (["add", "x", "--url", "http://h/\ta"], "spaces"),
        (["add", "x", "--url", "http://\u00e9"], "spaces"),
        (["add", "x", "--url", "http://user@h"], "user or a password"),
        (["add", "a b", "--url", "h"], "not a context name"),
        (["add", "x", "--url", "h", "--api-key-file", "none"], "none"),
        (["add", "x", "--url", "h", "--api-key-file", "two-words"], "one API key"),
        (["add", "x", "--data-dir", "d", "--api-key-file", "two-words"], "for a server"),
        (["use"], "--none"),
    ],
)
def test_a_context_that_is_none(home: Path, capsys: Any, arguments: list[str], says: str) -> None:
    (home / "two-words").write_text("a b")
    assert main(["context", *arguments]) == 2
    assert says in capsys.readouterr().err
    assert main(["context", "ls"]) == 0
    assert lines(capsys) == []


def test_a_file_that_is_damaged_says_which(home: Path, capsys: Any) -> None:
    file = home / "config" / "topics" / "contexts.json"
    file.parent.mkdir(parents=True)
    for text in ("{", "[]", '{"current": null, "contexts": {"a": {"nothing": 1}}}'):
        file.write_text(text)
        assert main(["context", "ls"]) == 2
        assert str(file) in capsys.readouterr().err


def test_no_home_is_needed(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch, isolated: None
) -> None:
    import pwd

    def unknown(uid: int) -> Any:
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    monkeypatch.delenv("HOME")
    for home in (None, "/dev/null", "/nonexistent", "", "relative"):
        if home is not None:
            monkeypatch.setenv("HOME", home)
        assert main(["ls"]) == 3
        assert "./topics-data is not a directory" in capsys.readouterr().err
        assert (
            main(
                [
                    "--data-dir",
                    str(tmp_path / "data"),
                    "create",
                    f"t{home is None}{len(home or '')}",
                ]
            )
            == 0
        )
        capsys.readouterr()
        assert main(["context", "ls"]) == 0
        assert lines(capsys) == []
        assert main(["--context", "x", "ls"]) == 3
    monkeypatch.delenv("HOME")
    assert main(["context", "add", "x", "--data-dir", str(tmp_path / "data")]) == 2
    assert "XDG_CONFIG_HOME" in capsys.readouterr().err
