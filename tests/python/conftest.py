"""What all tests have: databases, servers that many tests share, rules, and figures.

What a test prints is its figures: the run shows them at its end, though it passed.
"""

from __future__ import annotations

import contextlib
import copy
import gc
import os
import random
import signal
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

import topics_engine as te
from support import opened_clients
from support.gate import EXPLORES, GATE, fix_examples
from support.h2_client import Http2Port
from support.http_client import Http
from support.server import LIMITS, Server, opened, running
from support.tls import certificate

# A shell that starts the suite in the background has it ignore SIGINT, and so would the processes
# that tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)


fix_examples()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--shuffle",
        type=int,
        metavar="SEED",
        help="run the files, and their tests, in an order of this seed",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out the tests of other gates, unless a test is asked for by name."""
    if (seed := config.getoption("--shuffle")) is not None:
        order = random.Random(seed)
        keys: dict[object, float] = {}
        for item in items:
            keys[item.path] = keys.get(item.path) or order.random()
            keys[item] = order.random()
        items.sort(key=lambda item: (keys[item.path], keys[item]))
    if any("::" in argument for argument in config.args):
        return
    marks = {"slow"} if GATE == "quick" else set()
    marks |= set() if EXPLORES else {"explore"}
    deselected = {item for item in items if marks & item.keywords.keys()}
    config.hook.pytest_deselected(items=list(deselected))
    items[:] = [item for item in items if item not in deselected]


def pytest_collection_finish() -> None:
    """Takes what exists before the first test out of the collections after each test."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    gc.unfreeze()


@pytest.fixture(autouse=True, scope="session")
def no_settings_of_the_shell() -> None:
    """Removes `TOPICS_*` from the environment, except for the programs that tests use."""
    programs = ("TOPICS_VERSITYGW", "TOPICS_TOXIPROXY")
    for name in [n for n in os.environ if n.startswith("TOPICS_") and n not in programs]:
        del os.environ[name]


def environment() -> dict[str, str]:
    """The environment of the tests."""
    # pytest sets the one, the first import of polars the other.
    others = ("PYTEST_CURRENT_TEST", "_RJEM_MALLOC_CONF")
    return {name: value for name, value in os.environ.items() if name not in others}


@pytest.fixture(autouse=True)
def leaves_nothing_behind() -> Iterator[None]:
    """Closes the clients that a test opened, and collects its garbage, so that a warning about what
    it left open is an error of this test. The environment must be as it was.
    """
    before = environment()
    with opened_clients.closed_at_end():
        yield
    # The traceback of a failure refers to the locals of the test.
    for name in ("last_exc", "last_type", "last_value", "last_traceback"):
        if hasattr(sys, name):
            delattr(sys, name)
    gc.collect()
    assert environment() == before, "the test changed the environment"


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
    return f"t{zlib.crc32(request.node.nodeid.encode()):08x}-{name}"[:100]
