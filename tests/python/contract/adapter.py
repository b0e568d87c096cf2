"""One way to drive every client: that of `te.aio`.

The sync clients are driven through threads: a verb is a call in one, an iterator's step too. The
remote ones share one server per module, which has no topics when a test begins; a test that opens
its directory again, or with settings, has a server of its own on it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import topics_engine as te
from support.processes import looks_until_all_wait
from support.server import Server

# What is made without waiting for anything.
AT_ONCE = {"topic", "topics", "queues", "read", "watch", "work", "batches", "transaction"}
KINDS = (te.Database, te.Topic, te.Consumer, te.Router, te.Read, te.Watch, te.Job, te.Transaction)
HANDLES = (*KINDS, Iterator)
END = object()


def abandon(job: Any) -> None:
    """Stops renewing the lease of a job, as if the process that has it had died."""
    plain(job)._status.held.discard()


SERVERS: set[int] = set()
"""The processes of the servers that clients of this module are connected to."""


class Awaited:
    """A sync handle, with verbs that are awaited."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._handle, name)
        if not callable(value):
            return value
        if self._at_once(name):
            return lambda *args, **named: awaited(value(*map(plain, args), **named))

        async def verb(*args: Any, **named: Any) -> Any:
            return awaited(await asyncio.to_thread(value, *map(plain, args), **named))

        return verb

    def _at_once(self, name: str) -> bool:
        if isinstance(self._handle, te.Transaction):
            return True
        # A read of a consumer is a call; a read of a topic is an iterator.
        return name == "batches" or (name in AT_ONCE and not isinstance(self._handle, te.Consumer))

    async def __aenter__(self) -> Awaited:
        await asyncio.to_thread(self._handle.__enter__)
        return self

    async def __aexit__(self, *error: Any) -> None:
        await asyncio.to_thread(self._handle.__exit__, *error)

    def __aiter__(self) -> Awaited:
        return self if isinstance(self._handle, Iterator) else Awaited(iter(self._handle))

    async def __anext__(self) -> Any:
        item = await asyncio.to_thread(next, self._handle, END)
        if item is END:
            raise StopAsyncIteration
        return awaited(item)


def plain(value: Any) -> Any:
    if isinstance(value, list):
        return [plain(item) for item in value]
    return value._handle if isinstance(value, Awaited) else value


def awaited(value: Any) -> Any:
    if isinstance(value, list):
        return [awaited(item) for item in value]
    return Awaited(value) if isinstance(value, HANDLES) else value


@asynccontextmanager
async def open_sync(path: Path, **settings: Any) -> AsyncIterator[Any]:
    db = Awaited(await asyncio.to_thread(te.open, path, **settings))
    async with db:
        yield db


@asynccontextmanager
async def served(path: Path, settings: Mapping[str, Any]) -> AsyncIterator[Server]:
    """A server, for as long as one client is open."""
    env = {f"TOPICS_{name.upper()}": str(value) for name, value in settings.items()}
    server = Server(path, env=env)
    try:
        await asyncio.to_thread(server.start)
        with connected_to(server):
            yield server
        assert await asyncio.to_thread(server.stop) == 0
    finally:
        await asyncio.to_thread(server.ensure_dead)


@contextmanager
def connected_to(server: Server) -> Iterator[None]:
    SERVERS.add(pid := server.pid)
    try:
        yield
    finally:
        SERVERS.discard(pid)


@asynccontextmanager
async def connect_sync(path: Path, **settings: Any) -> AsyncIterator[Any]:
    async with served(path, settings) as server, Awaited(te.connect(server.url)) as db:
        yield db


@asynccontextmanager
async def connect_aio(path: Path, **settings: Any) -> AsyncIterator[Any]:
    async with served(path, settings) as server, te.aio.connect(server.url) as db:
        yield db


@asynccontextmanager
async def shared_sync(server: Server) -> AsyncIterator[Any]:
    async with emptied(server), Awaited(te.connect(server.url)) as db:
        yield db


@asynccontextmanager
async def shared_aio(server: Server) -> AsyncIterator[Any]:
    async with emptied(server), te.aio.connect(server.url) as db:
        yield db


@asynccontextmanager
async def emptied(server: Server) -> AsyncIterator[None]:
    """Drops every topic of a server when the test is over, so that the next one finds none."""

    def drop_all() -> None:
        with te.connect(server.url) as db:
            for info in list(db.topics()):
                db.topic(info.topic).drop()

    try:
        with connected_to(server):
            yield
    finally:
        await asyncio.to_thread(drop_all)


Open = Callable[..., AbstractAsyncContextManager[Any]]

EMBEDDED: dict[str, Open] = {"sync": open_sync, "aio": te.aio.open}
REMOTE: dict[str, Open] = {"remote": connect_sync, "remote-aio": connect_aio}
CLIENTS: dict[str, Open] = EMBEDDED | REMOTE
# Remote clients of a server that serves many tests.
SHARED: dict[str, Open] = {"remote": shared_sync, "remote-aio": shared_aio}

CANCELLABLE = ["aio", "remote-aio"]
"""Those whose waits end when their task is cancelled."""


def datas(items: Any) -> list[Any]:
    """The payloads of the records among items."""
    return [item.data for item in items if isinstance(item, te.Record)]


async def all_of(items: Any) -> list[Any]:
    return [item async for item in items]


async def take(watch: Any, n: int) -> list[Any]:
    """So many items of a watch."""
    out: list[Any] = []
    while len(out) < n:
        item = await watch.next(wait=60)
        assert item is not None, out
        out.append(item)
    return out


async def eventually(look: Callable[[], Awaitable[bool]]) -> None:
    """What an engine thread does by itself, some time."""
    async with asyncio.timeout(60):
        while not await look():
            await asyncio.sleep(0.005)


async def until_calls_wait() -> None:
    """Until the calls of this client that were begun wait, in the server where there is one."""
    for _ in looks_until_all_wait(*SERVERS):
        await asyncio.sleep(0.005)  # sleep: the iterator looks again, and has the deadline
