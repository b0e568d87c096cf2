"""Each test runs once per client, in an event loop of its own."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import topics_engine as te
from support.faulty_server import Faulty, in_front_of
from support.server import Server

from .adapter import CLIENTS, SHARED, Awaited, Open

LIMIT = 300.0
"""Seconds of a test: what takes longer hangs."""


class Threads(ThreadPoolExecutor):
    """A thread for each call, because a wait of the sync client holds one. A call that hangs fails
    its test: neither the end of the loop nor that of the process waits for it.
    """

    def submit(self, call: Any, /, *args: Any, **named: Any) -> Future[Any]:
        future: Future[Any] = Future()

        def run() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(call(*args, **named))
                except BaseException as error:
                    future.set_exception(error)

        threading.Thread(target=run, daemon=True).start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        pass


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Runs a test that is a coroutine; its `db` is open meanwhile."""
    test = pyfuncitem.obj
    if not inspect.iscoroutinefunction(test):
        return None
    given = {name: pyfuncitem.funcargs[name] for name in inspect.signature(test).parameters}

    async def run() -> None:
        asyncio.get_running_loop().set_default_executor(Threads())
        async with asyncio.timeout(LIMIT):
            if "db" not in given:
                await test(**given)
            else:
                async with given["db"]() as db:
                    await test(**{**given, "db": db})

    with asyncio.Runner() as runner:
        runner.run(run())
    return True


@pytest.fixture(autouse=True)
def _isolated(isolated: None) -> None:
    pass


def sync_client(url: str, **how: Any) -> Any:
    return Awaited(te.connect(url, **how))


@pytest.fixture(params=[sync_client, te.aio.connect], ids=["remote", "remote-aio"])
def connect(request: pytest.FixtureRequest) -> Callable[..., Any]:
    client: Callable[..., Any] = request.param
    return client


@pytest.fixture(params=CLIENTS)
def open_db(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    """Opens the test's directory, again and again."""
    client: Open = CLIENTS[request.param]
    return partial(client, tmp_path / "data")


@pytest.fixture(params=CLIENTS)
def db(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Any]:
    """An open database without topics: the test gets it when it runs."""
    if shared := SHARED.get(request.param):
        return partial(shared, request.getfixturevalue("server"))
    return partial(CLIENTS[request.param], tmp_path / "data")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One that no test of the module ends."""
    with Server(tmp_path_factory.mktemp("served") / "data") as live:
        yield live
        assert live.stop() == 0


@pytest.fixture
def faulty(server: Server) -> Iterator[Faulty]:
    """In front of it, and failing as it is told to."""
    with in_front_of(server.port) as faulty:
        yield faulty


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """Of a topic of this test alone."""
    return "t" + "".join(c for c in request.node.name if c.isalnum())
