"""Under a supervisor: readiness by sd_notify, an inherited socket, and the files of docs/deploy."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from topics_engine.asgi.settings import SERVER
from topics_engine.server.notify import notify
from topics_engine.settings import defaults, variable

DEPLOY = Path(__file__).resolve().parents[3] / "docs/deploy"
SECONDS = 30


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(tmp_path / "notify"))
        sock.settimeout(SECONDS)
        yield sock


def start(arguments: list[str], tmp_path: Path, **how: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "topics_engine.cli", "serve", "--data-dir"]
    return subprocess.Popen(
        [*command, str(tmp_path / "data"), *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **how,
    )  # fmt: skip


def test_a_supervisor_is_told_of_the_start_and_the_end(
    supervisor: socket.socket, tmp_path: Path
) -> None:
    env = {**os.environ, "NOTIFY_SOCKET": supervisor.getsockname()}
    with start(["--port", "0"], tmp_path, env=env) as process:
        assert process.stdout is not None
        url = process.stdout.readline().split()[2]
        assert supervisor.recv(1000).decode().splitlines() == ["READY=1", f"STATUS=serving {url}"]
        connection = http.client.HTTPConnection(url.removeprefix("http://"))
        connection.request("GET", "/readyz")
        assert connection.getresponse().status == 200, "it is ready when it says so"
        connection.close()
        process.send_signal(signal.SIGTERM)
        assert supervisor.recv(1000) == b"STOPPING=1"
        assert process.wait(SECONDS) == 0


def test_nobody_listens(monkeypatch: pytest.MonkeyPatch, caplog: Any, tmp_path: Path) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    notify("READY=1")
    assert caplog.records == []
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "none"))
    notify("READY=1")
    assert "cannot notify" in caplog.text
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as abstract:
        abstract.bind(f"\0topics-{os.getpid()}")
        monkeypatch.setenv("NOTIFY_SOCKET", f"@topics-{os.getpid()}")
        notify("READY=1")
        assert abstract.recv(100) == b"READY=1"


def test_a_socket_is_inherited(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        fd = listening.fileno()
        with start(["--fd", str(fd)], tmp_path, pass_fds=[fd]) as process:
            # A client that comes before the server waits in the socket's queue.
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=SECONDS)
            connection.request("GET", "/healthz")
            assert connection.getresponse().status == 200
            connection.close()
            assert process.stdout is not None
            assert f"listening on http://127.0.0.1:{port} " in process.stdout.readline()
            process.terminate()
            assert process.wait(SECONDS) == 0


def refused(fd: int, tmp_path: Path) -> tuple[int, str]:
    with start(["--fd", str(fd)], tmp_path, pass_fds=[fd]) as process:
        return process.wait(SECONDS), process.communicate()[1]


def test_what_is_no_listening_socket_is_refused(tmp_path: Path) -> None:
    with socket.create_server(("0.0.0.0", 0)) as everywhere:
        code, told = refused(everywhere.fileno(), tmp_path)
        assert (code, "there are no keys" in told) == (2, True), told
    with socket.socket() as unbound:
        code, told = refused(unbound.fileno(), tmp_path)
        assert (code, "does not listen" in told) == (1, True), told
    with socket.socket(socket.AF_UNIX) as local:
        code, told = refused(local.fileno(), tmp_path)
        assert (code, "is not a TCP socket" in told) == (1, True), told
    with (tmp_path / "file").open("w") as file:
        code, told = refused(file.fileno(), tmp_path)
        assert (code, "is not a socket" in told) == (1, True), told


def test_the_unit_and_the_compose_file_name_settings_that_there_are() -> None:
    known = {variable(name) for name in (*SERVER, *defaults(), "data_dir")}
    unit = (DEPLOY / "topics.service").read_text().splitlines()
    named = {line.split("=")[1] for line in unit if line.startswith("Environment=")}
    compose = yaml.safe_load((DEPLOY / "compose.yml").read_text())
    assert named | set(compose["services"]["topics"]["environment"]) <= known
    assert "Type=notify" in unit
    for service in compose["services"].values():
        for volume in service["volumes"]:
            source = volume.split(":")[0]
            assert source in compose["volumes"] or (DEPLOY / source).exists(), source
    scraped = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())
    (job,) = scraped["scrape_configs"]
    assert job["static_configs"] == [{"targets": ["topics:4000"]}]
    assert job["authorization"]["credentials"] in \
        compose["services"]["topics"]["environment"]["TOPICS_API_KEYS"]  # fmt: skip
