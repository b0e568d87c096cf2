"""`topics console`: the address of a server's console, and a browser that opens it."""

from __future__ import annotations

import json
import sys
import webbrowser
from pathlib import Path

import pytest

from support.processes import child
from support.server import Server
from support.waiting import DEADLINE
from topics_engine.cli import main


def test_the_server_of_a_directory_is_found(
    own_server: Server, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", lambda url: bool(opened.append(url)) or True)
    own_server.start()
    address = f"{own_server.url}/console"
    for place in (["--data-dir", str(own_server.data_dir)], ["--url", own_server.url + "/"]):
        assert main(["console", *place]) == 0
        assert json.loads(capsys.readouterr().out) == {"console": address}
    assert opened == [address] * 2
    assert main(["console", "--url", own_server.url, "--no-browser"]) == 0
    assert len(opened) == 2
    assert own_server.stop() == 0
    assert main(["console", "--data-dir", str(own_server.data_dir)]) == 3
    assert "start `topics serve" in capsys.readouterr().err


def test_a_machine_without_a_browser_gets_the_address(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webbrowser, "open", lambda url: False)
    assert main(["console", "--url", "http://127.0.0.1:4000"]) == 0
    assert "open the address yourself" in capsys.readouterr().err


def test_hints_begin_with_the_console(tmp_path: Path) -> None:
    """What `make run` prints first."""
    command = [sys.executable, "-m", "topics_engine.cli", "serve", "--port", "0", "--hints"]
    with child([*command, "--data-dir", str(tmp_path / "data")]) as process:
        assert process.stdout is not None
        first, second = process.stdout.readline(), process.stdout.readline()
        process.terminate()
        assert process.wait(2 * DEADLINE) == 0
    url = second.split("listening on ")[1].split()[0]
    assert first == f"console: {url}/console\n"
