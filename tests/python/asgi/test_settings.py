"""The settings of the server: an address with a port, and variables that nothing reads."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support.http_client import once
from support.processes import child
from support.waiting import DEADLINE, until
from topics_engine.asgi.build import build
from topics_engine.asgi.settings import Settings, resolve, unknown_variables
from topics_engine.errors import InvalidRequest


@pytest.mark.parametrize(
    ("host", "address", "port"),
    [
        ("127.0.0.1:5000", "127.0.0.1", 5000),
        ("localhost:0", "localhost", 0),
        ("0.0.0.0", "0.0.0.0", 4000),
        ("[::1]:5000", "::1", 5000),
        ("[::1]", "::1", 4000),
        ("::1", "::1", 4000),
        ("example.org:65535", "example.org", 65535),
    ],
)
def test_a_host_may_have_a_port(isolated: None, host: str, address: str, port: int) -> None:
    for given, environ in (({"host": host}, {}), ({}, {"TOPICS_HOST": host})):
        found = resolve(given, environ)
        assert (found.settings.host, found.settings.port) == (address, port)
        assert (found.values["host"], found.values["port"]) == (address, port)
        named = port != 4000
        assert (found.sources["port"] == found.sources["host"]) is named


@pytest.mark.parametrize(
    "host", ["", ":5000", "a:b", "a:65536", "a:123456", "[::1", "[::1]:", "a:", "[]:1", "a:-1"]
)
def test_what_is_no_address_is_refused(isolated: None, host: str) -> None:
    with pytest.raises(InvalidRequest, match=r"^(host|port) \("):
        resolve({}, {"TOPICS_HOST": host})


def test_the_port_of_the_higher_source_counts(isolated: None) -> None:
    def port(arguments: dict[str, str], environ: dict[str, str]) -> tuple[int, str]:
        found = resolve(arguments, environ)
        return found.settings.port, found.sources["port"]

    host = {"TOPICS_HOST": "a:5000"}
    assert port({"port": "6000"}, host) == (6000, "argument")
    assert port({"host": "a:5000"}, {"TOPICS_PORT": "6000"}) == (5000, "argument")
    assert port({}, host | {"TOPICS_PORT": "5000"})[0] == 5000
    Path("topics.toml").write_text("port = 7000")
    assert port({}, host) == (5000, "environment TOPICS_HOST")
    with pytest.raises(InvalidRequest, match="name it once"):
        port({}, host | {"TOPICS_PORT": "6000"})
    with pytest.raises(InvalidRequest, match="name it once"):
        port({"host": "a:5000", "port": "6000"}, {})


@pytest.mark.parametrize(
    ("origins", "keys", "warns"),
    [
        ("*", "", True),
        ("https://a.example, *", "", True),
        ("*", "secret-key", False),
        ("https://a.example", "", False),
        ("", "", False),
    ],
)
def test_every_origin_without_keys_is_warned_of(
    caplog: pytest.LogCaptureFixture, tmp_path: Path, origins: str, keys: str, warns: bool
) -> None:
    build(Settings(data_dir=str(tmp_path), cors_origins=origins, api_keys=keys))
    assert [r.levelname for r in caplog.records] == ["WARNING"] * warns
    assert all("cors_origins is *" in r.getMessage() for r in caplog.records)


def test_variables_that_nothing_reads() -> None:
    known = dict.fromkeys(("TOPICS_HOST", "TOPICS_URL", "TOPICS_CONFIG", "TOPICS_CONTEXT"), "")
    known["TOPICS_MAX_TOPICS"] = "1"
    assert unknown_variables(known | {"OTHER": "", "PATH": ""}) == []
    near, far = unknown_variables(known | {"TOPICS_MAX_TOPIC": "1", "TOPICS_ZZZ": ""})
    assert "TOPICS_MAX_TOPIC is unknown" in near
    assert "did you mean TOPICS_MAX_TOPICS?" in near
    assert "TOPICS_ZZZ is unknown" in far
    assert "did you mean" not in far


def test_a_server_warns_of_them_and_listens_where_the_host_says(tmp_path: Path) -> None:
    env = {"TOPICS_HOST": "127.0.0.1:0", "TOPICS_MAX_TOPIC": "5", "TOPICS_DATA_DIR": str(tmp_path)}
    command = (sys.executable, "-m", "topics_engine.cli", "serve")
    with child(command, env=env, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        port = int(line.split("listening on http://127.0.0.1:", 1)[1].split()[0])
        until(lambda: once(port, "GET", "/v0/ready").status == 200, 2 * DEADLINE)
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=2 * DEADLINE)
    assert process.returncode == 0
    assert "the variable TOPICS_MAX_TOPIC is unknown" in errors
    assert "did you mean TOPICS_MAX_TOPICS?" in errors
    assert errors.count("is unknown") == 1


def test_an_application_warns_of_them(tmp_path: Path) -> None:
    code = "from topics_engine.asgi import create_app; create_app()"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"TOPICS_DATA_DIR": str(tmp_path), "TOPICS_ZZZ": "1"},
        capture_output=True,
        text=True,
        check=True,
        timeout=2 * DEADLINE,
    )
    assert "the variable TOPICS_ZZZ is unknown" in done.stderr
