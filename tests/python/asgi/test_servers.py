"""The application under ASGI servers of others: the answers are those of `topics serve`."""

from __future__ import annotations

import contextlib
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import topics_engine as te
from support.asgi_server import MOUNTED, SERVERS, AsgiServer, serving
from support.gate import sized
from support.http_client import Http, Reply, once
from support.server import LIMITS, opened
from support.sse import Events

from .pending import DEADLINE
from .test_conformance import ARROW, CASES, check, comparable, send

KINDS = [*SERVERS, "starlette", "fastapi"]
UVICORN_IS_QUICK = [
    pytest.param(kind, marks=[] if kind == "uvicorn" else [pytest.mark.slow]) for kind in KINDS
]

# Two stages of as many rows as a request may have are more than a commit may.
ENV = {**LIMITS, "TOPICS_MAX_EMBEDDED_BATCH_RECORDS": "1500"}

# At the full gate each server answers a third of the cases, at the release gate all of them.
SHARES = sized(3, 3, 1)

# What a server refuses itself, before any application sees it.
REFUSED_BY_SERVER = {
    "hypercorn": {"headers too large"},
    "daphne": {"headers too large"},
    # A `>` in a path, unescaped, as its parser follows the grammar of URIs to the letter.
    "granian": {"router with a plain arrow"},
}


def kind_of(name: str) -> tuple[str, str]:
    """The server, and the framework that mounts the application."""
    return ("uvicorn", name) if name in MOUNTED else (name, "")


def topic_of(name: str) -> str:
    return "t-" + re.sub(r"[^A-Za-z0-9]", "-", name)


def environment(folder: Path) -> dict[str, str]:
    """The settings of a server with its files in this folder."""
    (folder / "backups").mkdir()
    return {**ENV, "TOPICS_BACKUP_DIR": str(folder / "backups")}


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Reply]:
    """What `topics serve` answers to each case."""
    folder = tmp_path_factory.mktemp("reference")
    with opened(folder / "data", environment(folder)) as server:
        api = Http(server.port)
        with contextlib.closing(api):
            return {name: send(case, api, topic_of(name)) for name, case in CASES.items()}


@pytest.fixture(scope="module", params=KINDS)
def other(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[AsgiServer]:
    server, mounted = kind_of(request.param)
    folder = tmp_path_factory.mktemp(server)
    with serving(folder, server, mounted=mounted, env=environment(folder)) as live:
        live.wait_ready()
        yield live
        assert live.stop(DEADLINE) in (0, -signal.SIGTERM), live.log.read_text()


@pytest.mark.slow
def test_every_case_under_every_server(other: AsgiServer, reference: dict[str, Reply]) -> None:
    wrong = []
    # At the full gate each server has a share of the cases, and all of them together have all.
    offset, share = KINDS.index(other.name) % SHARES, 0
    for number, (name, case) in enumerate(CASES.items()):
        if number % SHARES != offset or name in REFUSED_BY_SERVER.get(other.server, ()):
            continue
        share += 1
        # A connection each: servers differ in when they close one after a refusal.
        api = Http(other.port, base=other.base)
        try:
            reply, expected = send(case, api, topic_of(name)), reference[name]
            check(case, reply, topic_of(name))
            assert reply.headers["content-type"] == expected.headers["content-type"]
            if reply.headers["content-type"] == ARROW:
                assert len(reply.body) == len(expected.body)
            elif "metrics" not in case.path and "segments" not in case.path:
                assert comparable(reply.body) == comparable(expected.body)
        except Exception as failure:
            wrong.append(f"{name}: {type(failure).__name__} {str(failure)[:600]}")
        finally:
            api.close()
    assert not wrong, f"{len(wrong)} of {share}:\n" + "\n".join(wrong)
    print(f"{share} cases")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["daphne", "uvicorn --lifespan off", "bare mount"])
def test_without_lifespan_the_first_request_waits_for_the_engine(tmp_path: Path, name: str) -> None:
    """Nothing was asked before, not even whether the engine is open."""
    # A log to recover, so that the open takes a moment.
    with te.open(tmp_path / "data") as db:
        for n in range(50):
            db.topic("first").append([n] * 1000)
    server, _, mounted = {"bare mount": "uvicorn  bare"}.get(name, name).partition("  ")
    with serving(tmp_path, server, mounted=mounted) as live:
        reply = once(live.port, "GET", f"{live.base}/v0/topics/first")
        assert (reply.status, reply.json["head_seq"]) == (200, 50_000), reply
        assert live.stop(DEADLINE) in (0, -signal.SIGTERM), live.log.read_text()


@pytest.mark.parametrize("name", UVICORN_IS_QUICK)
def test_open_streams_end_with_the_server(tmp_path: Path, name: str) -> None:
    """SIGTERM while a stream is open: it ends with a frame, the server in time, acks are kept."""
    server, mounted = kind_of(name)
    with serving(tmp_path, server, mounted=mounted) as live:
        live.wait_ready()
        body = {"records": [{"data": n} for n in range(3)]}
        assert once(live.port, "POST", f"{live.base}/v0/topics/t", body).status == 201
        with Events(live.port, f"{live.base}/v0/watch?topic=t&from_seq=0") as events:
            assert events.values(3) == [0, 1, 2]
            code = live.stop(DEADLINE)
            assert code in (0, -signal.SIGTERM), (code, live.log.read_text())
            *_, last = events
        assert (last.kind, last.data["error"]) == ("error", "shutting_down")
    with te.open(tmp_path / "data") as db:
        assert db.topic("t").state().head_seq == 3


@pytest.mark.parametrize("name", UVICORN_IS_QUICK)
def test_settings_that_are_wrong_fail_the_start(tmp_path: Path, name: str) -> None:
    """Not the first request, hours later. Daphne starts an application only with a request."""
    server, mounted = kind_of(name)
    if name == "daphne":
        pytest.skip("it has no lifespan")
    made = AsgiServer(tmp_path, server, mounted=mounted, env={"TOPICS_MAX_BODY_BYTES": "many"})
    try:
        code = made.process.wait(DEADLINE)
        # The worker of hypercorn fails, and its parent says so with 0.
        assert code != 0 or name == "hypercorn"
        assert "max_body_bytes" in made.log.read_text()
    finally:
        made.ensure_dead()
