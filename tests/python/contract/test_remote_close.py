"""Remote clients: `close` ends what waits, wherever it waits."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import topics_engine as te
from support.faulty_server import Faulty, Hang, Refuse

from .adapter import Awaited, all_of, datas, plain, until_calls_wait
from .test_remote_faults import FOREVER, NOT_READY

# A call that ends was woken: all timeouts and the hanging of the server are longer than any test.
HANG = Hang(FOREVER)
PATIENT = {"timeout": FOREVER, "deadline": FOREVER, "connect_timeout": FOREVER}


async def arrived(faulty: Faulty, count: int = 1) -> None:
    """Until so many requests have come."""
    async with asyncio.timeout(60):
        while len(faulty.requests) < count:
            await asyncio.sleep(0.002)


async def ends(wait: Any) -> Any:
    """What became of it."""
    async with asyncio.timeout(60):
        return (await asyncio.gather(wait, return_exceptions=True))[0]


def watching(db: Any, name: str) -> Any:
    """The sync client makes a session at once."""
    if isinstance(db, Awaited):
        return asyncio.to_thread(plain(db).watch, {name: 0})
    return all_of(db.watch({name: 0}))


CALLS: dict[str, Callable[[Any, str], Any]] = {
    "state": lambda db, name: db.topic(name).state(),
    "append": lambda db, name: db.topic(name).append(1),
    "read": lambda db, name: all_of(db.topic(name).read(after=0)),
    "table": lambda db, name: db.topic(name).read().to_arrow(),
    "wait": lambda db, name: db.topic(name).wait(9, timeout=FOREVER),
    "queue": lambda db, name: db.queue(f"{name}q"),
    "watch": watching,
    "sync": lambda db, _: db.sync(),
}


@pytest.mark.parametrize("call", CALLS)
async def test_a_close_ends_a_request_that_hangs(
    faulty: Faulty, connect: Any, name: str, call: str
) -> None:
    async with connect(faulty.url, **PATIENT) as db:
        await db.topic(name).append(1)
        faulty.fail(*[HANG] * 9)
        waits = asyncio.ensure_future(CALLS[call](db, name))
        await arrived(faulty)
        await db.close()
        assert type(await ends(waits)) is te.Closed


async def test_a_close_ends_requests_that_wait_for_a_connection(
    faulty: Faulty, connect: Any, name: str
) -> None:
    async with connect(faulty.url, pool=1, **PATIENT) as db:
        await db.topic(name).append(1)
        faulty.fail(*[HANG] * 9)
        waits = [asyncio.ensure_future(db.topic(name).state()) for _ in range(3)]
        await arrived(faulty)
        await until_calls_wait()
        await db.close()
        assert [type(await ends(wait)) for wait in waits] == [te.Closed] * 3
        assert len(faulty.requests) == 1, "the others had no connection"


async def test_a_close_ends_a_pause(faulty: Faulty, connect: Any, name: str) -> None:
    async with connect(faulty.url, **PATIENT) as db:
        faulty.fail(Refuse(503, {"Retry-After": "600"}, NOT_READY))
        waits = asyncio.ensure_future(db.topic(name).append(1))
        await arrived(faulty)
        await until_calls_wait()
        await db.close()
        assert type(await ends(waits)) is te.Closed


@contextlib.contextmanager
def nobody_accepts() -> Iterator[str]:
    """A URL whose connections are never made."""
    with contextlib.ExitStack() as stack:
        full = stack.enter_context(socket.socket())
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for _ in range(3):
            taken = stack.enter_context(socket.socket())
            taken.setblocking(False)
            taken.connect_ex(full.getsockname())
        yield f"http://127.0.0.1:{full.getsockname()[1]}"


@contextlib.contextmanager
def nobody_shakes_hands() -> Iterator[str]:
    """A URL whose connections are made, and get no further."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(9)
        yield f"https://127.0.0.1:{silent.getsockname()[1]}"


@pytest.mark.parametrize("nobody", [nobody_accepts, nobody_shakes_hands])
async def test_a_close_ends_a_connection_that_is_being_made(connect: Any, nobody: Any) -> None:
    with nobody() as url:
        async with connect(url, **PATIENT) as db:
            waits = asyncio.ensure_future(db.topic("t").append(1))
            await until_calls_wait()
            await db.close()
            assert type(await ends(waits)) is te.Closed


async def test_a_close_ends_pages_that_are_fetched_ahead(
    faulty: Faulty, connect: Any, name: str
) -> None:
    async with connect(faulty.url, **PATIENT) as db:
        t = db.topic(name)
        for _ in range(5):
            await t.append(list(range(1000)))
        reads = [t.read(after=0, to_seq=5000 - n) for n in range(6)]
        pages = [read.batches() for read in reads]
        faulty.fail(matching="/diff")
        for page in pages:
            assert len(await anext(page)) + len(await anext(page)) == 2000
        await arrived(faulty, 18)
        faulty.fail(*[HANG] * 20, matching="/diff")
        # The third page has come; when it is taken the fourth is on its way, or waits for that.
        for page in pages:
            assert len(await anext(page)) == 1000
        await arrived(faulty, 4)
        waits = [asyncio.ensure_future(all_of(page)) for page in pages]
        await until_calls_wait()
        await reads[0].close()
        assert await ends(waits[0]) == []
        assert not any(wait.done() for wait in waits[1:])
        await db.close()
        outcomes = [await ends(wait) for wait in waits[1:]]
        assert {type(outcome) for outcome in outcomes} == {te.Closed}, outcomes


async def test_closing_a_read_ends_its_request(faulty: Faulty, connect: Any, name: str) -> None:
    async with connect(faulty.url, **PATIENT) as db:
        t = db.topic(name)
        await t.append([1, 2])
        read = t.read(after=0)
        faulty.fail(HANG)
        waits = asyncio.ensure_future(all_of(read))
        await arrived(faulty)
        await read.close()
        assert await ends(waits) == []
        # The client and its other calls go on.
        assert datas(await all_of(t.read(after=0))) == [1, 2]


@pytest.mark.slow
@pytest.mark.parametrize(
    "where", ["/v0/watch/", "/diff", "/v0/watch"], ids=["stream", "page", "session"]
)
async def test_closing_a_watch_ends_its_request(
    faulty: Faulty, connect: Any, name: str, where: str
) -> None:
    """That for its stream, for a page of what lies before the session, for the session."""
    if where == "/v0/watch" and connect is not te.aio.connect:
        pytest.skip("the sync client makes the session before there is a watch to close")
    async with connect(faulty.url, **PATIENT) as db:
        t = db.topic(name)
        await t.append([1, 2])
        watch = db.watch({f"{name}*" if where == "/diff" else name: 0})
        # What is said at the end hangs as well.
        faulty.fail(HANG, HANG, matching=where)
        waits = asyncio.ensure_future(all_of(watch))
        await arrived(faulty)
        await ends(watch.close())
        assert await ends(waits) == []
        faulty.fail()
        faulty.faults.clear()
        assert datas(await all_of(t.read(after=0))) == [1, 2]


async def test_closing_a_stream_of_jobs_ends_its_request(
    faulty: Faulty, connect: Any, name: str
) -> None:
    async with connect(faulty.url, **PATIENT) as db:
        jobs = await db.queue(name)
        await jobs.append(1)
        faulty.fail(HANG, matching="/work")
        stream = jobs.work("w")
        waits = asyncio.ensure_future(all_of(stream))
        await arrived(faulty)
        await stream.close()
        assert await ends(waits) == []
        (job,) = await jobs.claim("w")
        assert job.data == 1
