"""What keeps `topics serve` from serving is said before it says that it listens."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import topics_engine as te
from support.server import Server
from support.waiting import DEADLINE


def served(folder: Path, *arguments: str, env: dict[str, str] | None = None) -> tuple[int, str]:
    """The exit code and the error of a server that cannot start."""
    command = [sys.executable, "-m", "topics_engine", "serve", "--port", "0", *arguments]
    ended = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "TOPICS_DATA_DIR": str(folder / "data"), **(env or {})},
        capture_output=True,
        text=True,
        timeout=2 * DEADLINE,
        check=False,
    )
    assert ended.stdout == "", "it has said that it listens"
    assert "Traceback" not in ended.stderr
    return ended.returncode, ended.stderr


@pytest.mark.parametrize(
    ("arguments", "env", "code", "says"),
    [
        (["--port", "many"], {}, 2, "port"),
        (["--port", "70000"], {}, 2, "65535"),
        (["--host", "no.such.host.invalid"], {"TOPICS_API_KEYS": "k"}, 1, "no.such.host.invalid"),
        (["--host", "0.0.0.0"], {}, 2, "TOPICS_API_KEYS"),
        ([], {"TOPICS_API_KEYS": "key:everything"}, 2, "scopes"),
        ([], {"TOPICS_API_KEYS_FILE": "none"}, 2, "none"),
        (["--tls-cert", "none.pem"], {}, 2, "none.pem"),
        (["--tls-key", "none.pem"], {}, 2, "--tls-cert"),
        ([], {"TOPICS_MAX_TOPICS": "few"}, 2, "max_topics"),
        ([], {"TOPICS_CONFIG": "none.toml"}, 2, "none.toml"),
        (["--data-dir", "file"], {}, 2, "file"),
        (["--data-dir", "/d"], {"TOPICS_REMOTE_URL": "file:///d/remote"}, 2, "/d/remote is in the"),
    ],
)
def test_a_wrong_setting(
    tmp_path: Path, arguments: list[str], env: dict[str, str], code: int, says: str
) -> None:
    (tmp_path / "file").write_text("no directory")
    found, error = served(tmp_path, *arguments, env=env)
    assert (found, says in error) == (code, True), error


def test_a_port_in_use(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, error = served(tmp_path, "--port", str(port))
    assert (code, f"127.0.0.1:{port}" in error) == (1, True), error


def test_a_directory_that_another_server_has_open(hot_server: Server, tmp_path: Path) -> None:
    code, error = served(tmp_path, "--data-dir", str(hot_server.data_dir))
    assert (code, f"--url {hot_server.url}" in error) == (1, True), error


def test_a_directory_that_a_program_has_open(tmp_path: Path) -> None:
    with te.open(tmp_path / "data"):
        code, error = served(tmp_path)
    assert (code, f"process {os.getpid()}" in error) == (1, True), error
