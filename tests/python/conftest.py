"""What all tests have: databases, servers that many tests share, and figures.

What a test prints is its figures: the run shows them at its end, though it passed.
"""

from __future__ import annotations

import contextlib
import copy
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import topics_engine as te
from support.gate import GATE
from support.h2_client import Http2Port
from support.http_client import Http
from support.server import LIMITS, Server, opened, running
from support.tls import certificate

# A shell that starts the suite in the background has it ignore SIGINT, and so would the processes
# that tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves `slow` tests out of the quick gate, unless their file or name is asked for."""
    if GATE != "quick" or any("::" in argument for argument in config.args):
        return
    slow = [item for item in items if "slow" in item.keywords]
    config.hook.pytest_deselected(items=slow)
    items[:] = [item for item in items if "slow" not in item.keywords]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """A line for each line that a passed test has printed."""
    passed = [r for r in terminalreporter.getreports("passed") if r.when == "call" and r.capstdout]
    if passed:
        terminalreporter.section("figures")
    for report in passed:
        name = report.nodeid.rpartition("/")[2]
        for line in report.capstdout.splitlines():
            terminalreporter.write_line(f"{name}: {line}")


@pytest.fixture
def isolated(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No settings from outside: neither of the environment nor of a file."""
    for name in list(os.environ):
        if name.startswith("TOPICS_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def db(data_dir: Path) -> Iterator[te.Database]:
    with te.open(data_dir) as opened:
        yield opened


def _serve(directory: Path, *, hot: bool) -> Iterator[Server]:
    yield from running(directory, {**LIMITS, "TOPICS_HOT_PROTOCOL": str(int(hot))})


@pytest.fixture(scope="session")
def hot_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server as it is by default."""
    yield from _serve(tmp_path_factory.mktemp("hot") / "data", hot=True)


@pytest.fixture(scope="session")
def plain_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server whose every request goes to the application."""
    yield from _serve(tmp_path_factory.mktemp("plain") / "data", hot=False)


@pytest.fixture(scope="session")
def h2_server(hot_server: Server) -> Server:
    """The same server, to whom clients speak HTTP/2."""
    view = copy.copy(hot_server)
    view.port = Http2Port(view.port)
    return view


@pytest.fixture(scope="session")
def tls(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The settings of a server that has a certificate."""
    return certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture(params=["hot", "plain"] if GATE == "quick" else ["hot", "plain", "h2"])
def protocol(request: pytest.FixtureRequest) -> str:
    """The ways into the application, one after the other. At the quick gate HTTP/2 is left to its
    own tests and to the conformance cases.
    """
    return str(request.param)


@pytest.fixture(scope="module")
def protocols(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Server]]:
    """A server of its own behind each protocol, so that all of them see the same requests."""
    with contextlib.ExitStack() as stack:
        made: dict[str, Server] = {}
        for name in ("plain", "hot", "h2"):
            env = {**LIMITS, "TOPICS_HOT_PROTOCOL": str(int(name != "plain"))}
            # Two stages of as many rows as a request may have are more than a commit may.
            env["TOPICS_MAX_EMBEDDED_BATCH_RECORDS"] = "1500"
            directory = tmp_path_factory.mktemp(name) / "data"
            env["TOPICS_BACKUP_DIR"] = str(tmp_path_factory.mktemp(f"{name}-backups"))
            made[name] = stack.enter_context(opened(directory, env))
        made["h2"].port = Http2Port(made["h2"].port)
        yield made


@pytest.fixture
def clients(protocols: dict[str, Server]) -> Iterator[dict[str, Http]]:
    made = {name: Http(server.port) for name, server in protocols.items()}
    yield made
    for client in made.values():
        client.close()


@pytest.fixture
def server(request: pytest.FixtureRequest, protocol: str) -> Server:
    """A server for all tests that do not end it; topics of a test carry its name."""
    live: Server = request.getfixturevalue(f"{protocol}_server")
    return live


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[Server]:
    """A server that the test starts, stops or kills."""
    live = Server(tmp_path / "data")
    yield live
    live.ensure_dead()


@pytest.fixture
def api(server: Server) -> Iterator[Http]:
    client = Http(server.port)
    yield client
    client.close()


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A name of this test alone."""
    name = "".join(c if c.isalnum() else "-" for c in request.node.name)
    return f"t{abs(hash(request.node.nodeid)) % 10**8}-{name}"[:100]
