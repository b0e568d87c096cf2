"""Under a supervisor: readiness by sd_notify, an inherited socket, and the files of docs/deploy."""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.http_client import Http
from support.server import opened
from support.waiting import DEADLINE
from topics_engine.asgi.settings import SERVER
from topics_engine.cli.main import parser
from topics_engine.server.notify import notify
from topics_engine.settings import engine_settings

ROOT = Path(__file__).resolve().parents[3]
DEPLOY = ROOT / "docs/deploy"
SECONDS = DEADLINE


def tool(name: str) -> str:
    """The path of a program of the machine; skips the test without it."""
    return shutil.which(name) or pytest.skip(f"no {name} on this machine")


def run(*command: str | Path) -> str:
    """What a command prints; it must succeed."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(tmp_path / "notify"))
        sock.settimeout(SECONDS)
        yield sock


@contextlib.contextmanager
def ended_process(command: list[str], **how: Any) -> Iterator[subprocess.Popen[str]]:
    """A process that is killed at the end of the block, if it still runs: a failed test does not
    wait for it.
    """
    with subprocess.Popen(command, **how) as process:
        try:
            yield process
        finally:
            process.kill()


def start(
    arguments: list[str], tmp_path: Path, **how: Any
) -> contextlib.AbstractContextManager[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "topics_engine.cli", "serve", "--data-dir"]
    return ended_process(
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
        connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=SECONDS)
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
        abstract.settimeout(SECONDS)
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
    known = {setting.variable for setting in (SERVER | engine_settings()).values()}
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
    [written] = compose["services"]["prometheus"]["configs"]
    assert job["authorization"]["credentials_file"] == written["target"]
    assert f"{compose['configs'][written['source']]['content']}:read" in \
        compose["services"]["topics"]["environment"]["TOPICS_API_KEYS"]  # fmt: skip


def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    analyze = tool("systemd-analyze")
    installed = Path(sys.executable).with_name("topics")
    units = [
        tmp_path / name
        for name in (
            "topics.service",
            "topics.socket",
            "topics-drill.service",
            "topics-drill.timer",
        )
    ]
    for unit in units:
        text = (DEPLOY / unit.name).read_text()
        assert ("/opt/topics/bin/topics" in text) == (unit.suffix == ".service")
        unit.write_text(text.replace("/opt/topics/bin/topics", str(installed)))
    assert run(analyze, "verify", "--man=no", *units) == "", "systemd has nothing to say"
    # A key that systemd does not know is something that it says, without an error.
    units[0].write_text(units[0].read_text().replace("RestartSec", "RestartSecs"))
    assert "RestartSecs" in run(analyze, "verify", "--man=no", *units)


def test_docker_compose_accepts_the_file() -> None:
    compose = shutil.which("docker-compose") or tool("docker")
    command = [compose] if compose.endswith("-compose") else [compose, "compose"]
    try:
        run(*command, "version")
    except AssertionError:
        pytest.skip("this docker has no compose")
    found = yaml.safe_load(run(*command, "-f", DEPLOY / "compose.yml", "config"))
    assert found["services"].keys() == {"topics", "prometheus", "grafana"}


def test_what_docker_and_systemd_start_is_a_command() -> None:
    [started], [drilled] = (
        re.findall(r"^ExecStart=(.*)$", (DEPLOY / name).read_text(), re.MULTILINE)
        for name in ("topics.service", "topics-drill.service")
    )
    [socket_activated] = re.findall(
        r"`(topics serve [^`]*)`", (DEPLOY / "topics.socket").read_text()
    )
    image = (ROOT / "Dockerfile").read_text()
    [entry] = re.findall(r"^ENTRYPOINT (.*)$", image, re.MULTILINE)
    [arguments] = re.findall(r"^CMD (.*)$", image, re.MULTILINE)
    for command in (
        shlex.split(started), shlex.split(socket_activated),
        yaml.safe_load(entry) + yaml.safe_load(arguments),
    ):  # fmt: skip
        assert Path(command[0]).name == "topics"
        assert parser().parse_args(command[1:]).command == "serve"
    timed = parser().parse_args(shlex.split(drilled)[1:])
    assert (timed.command, timed.drill) == ("verify", True)


def test_the_image_runs_as_a_user_by_number() -> None:
    image = (ROOT / "Dockerfile").read_text()
    assert re.findall(r"^USER (.*)$", image, re.MULTILINE) == ["10001:10001"]
    assert "groupadd --gid 10001 topics && useradd --uid 10001 --gid 10001" in image


def test_the_server_of_the_compose_file_is_healthy_and_scraped(tmp_path: Path) -> None:
    unset = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", (DEPLOY / "compose.yml").read_text())
    compose = yaml.safe_load(unset)
    environment = compose["services"]["topics"]["environment"]
    image = (ROOT / "Dockerfile").read_text()
    [check] = re.findall(r"^HEALTHCHECK .* CMD (.*)$", image, re.MULTILINE)
    program, *arguments = yaml.safe_load(check)
    assert program == "python"
    key = compose["configs"]["metrics-key"]["content"]
    with opened(tmp_path / "data", environment) as server:
        checks = [a.replace("127.0.0.1:4000", f"127.0.0.1:{server.port}") for a in arguments]
        assert checks != arguments
        run(sys.executable, *checks)
        for path, method, wanted in (("/metrics", "GET", 200), ("/v0/topics/t", "PUT", 403)):
            with contextlib.closing(Http(server.port)) as api:
                reply = api(method, path, b"{}", {"Authorization": f"Bearer {key}"})
                assert reply.status == wanted, path
