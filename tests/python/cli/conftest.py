"""The command line over a directory, and over a server."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from support.server import Server
from support.terminal import Run


@pytest.fixture(autouse=True)
def no_contexts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Hides the contexts of the user who runs the tests."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


@pytest.fixture(params=["directory", "server"])
def cli(
    request: pytest.FixtureRequest, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> Run:
    """Runs a command; its exit code and the JSON lines it printed."""
    if request.param == "server":
        server: Server = request.getfixturevalue("hot_server")
        where = ["--url", server.url]
    else:
        where = ["--data-dir", str(tmp_path / "data")]

    def run(*arguments: str, stdin: bytes = b"") -> tuple[int, list[Any]]:
        from topics_engine.cli import main

        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        code = main([*where, *arguments])
        printed = capsys.readouterr()
        return code, [json.loads(line) for line in printed.out.split("\n")[:-1]]

    run.where = where  # type: ignore[attr-defined]
    return run
