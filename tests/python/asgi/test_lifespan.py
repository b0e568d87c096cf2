"""The engine's life behind the application: opening, failing, draining, closing."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import pytest

from support.asgi_driver import Driver, run


class Lifespan:
    """A server's side of the lifespan protocol."""

    def __init__(self, driver: Driver) -> None:
        self.sent: list[Any] = []
        self._inbox: asyncio.Queue[Any] = asyncio.Queue()
        self._task = asyncio.ensure_future(
            driver.app({"type": "lifespan"}, self._inbox.get, self._take)
        )

    async def _take(self, message: Any) -> None:
        self.sent.append(message["type"])

    async def start(self) -> None:
        await self._inbox.put({"type": "lifespan.startup"})
        while not self.sent:
            await asyncio.sleep(0)

    async def stop(self) -> None:
        await self._inbox.put({"type": "lifespan.shutdown"})
        await self._task


async def code_of(driver: Driver, path: str = "/readyz") -> tuple[int, str]:
    sent = await driver.request("GET", path)
    if sent.status < 400:
        return sent.status, ""
    assert int(sent.headers[b"retry-after"]) >= 1
    return sent.status, json.loads(sent.body)["error"]["code"]


def recovering(**options: Any) -> tuple[Driver, threading.Event]:
    """An application whose engine opens when the event is set."""
    recovered = threading.Event()

    def recover() -> Any:
        assert recovered.wait(120)
        return "engine", driver.http

    driver = Driver(open_engine=recover, **options)
    return driver, recovered


def test_not_ready_while_recovering_then_ready_then_closed() -> None:
    replayed = [0.0]
    driver, recovered = recovering(progress=lambda: replayed[0])

    async def go() -> None:
        lifespan = Lifespan(driver)
        await lifespan.start()
        assert lifespan.sent == ["lifespan.startup.complete"]
        for share, path in ((0.0, "/readyz"), (0.25, "/v0/ready"), (0.75, "/v0/topics")):
            replayed[0] = share
            assert await code_of(driver, path) == (503, "not_ready")
            detail = json.loads((await driver.request("GET", path)).body)["error"]["detail"]
            assert detail["replay_progress"] == share
        assert (await driver.request("GET", "/healthz")).status == 200
        recovered.set()
        while driver.lifespan.phase == "opening":
            await asyncio.sleep(0.001)
        assert await code_of(driver) == (200, "")
        await lifespan.stop()
        assert lifespan.sent[1:] == ["lifespan.shutdown.complete"]
        assert driver.closed_engines == ["engine"]
        assert await code_of(driver) == (503, "shutting_down")

    run(go())


def test_a_stream_waits_for_recovery() -> None:
    driver, recovered = recovering()

    async def go() -> None:
        lifespan = Lifespan(driver)
        await lifespan.start()
        left = asyncio.Event()
        stays, leaves = (
            asyncio.ensure_future(driver.request("GET", "/v0/watch", query=b"topic=a", leave=leave))
            for leave in (None, left)
        )
        assert await code_of(driver) == (503, "not_ready")
        left.set()
        assert (await leaves).status == 0
        assert (driver.app.streams, driver.http.calls, stays.done()) == (1, [], False)
        recovered.set()
        assert (await stays).status == 200
        assert [call.route for call in driver.http.calls] == ["watch_query"]
        await lifespan.stop()

    run(go())


def test_a_stream_waits_for_recovery_so_long_and_no_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("topics_engine.asgi.application.STREAM_WAIT", 0.0)
    driver, recovered = recovering()

    async def go() -> None:
        lifespan = Lifespan(driver)
        await lifespan.start()
        assert await code_of(driver, "/v0/watch") == (503, "not_ready")
        recovered.set()
        await lifespan.stop()

    run(go())


def test_an_engine_that_cannot_open_says_why() -> None:
    class Corrupt(Exception):
        code = "corrupt"

    def fail() -> Any:
        raise Corrupt("wal-1.log is corrupt at offset 7")

    driver = Driver(open_engine=fail)
    seen: list[BaseException] = []
    driver.lifespan.on_failure = seen.append

    async def go() -> None:
        lifespan = Lifespan(driver)
        await lifespan.start()
        while driver.lifespan.phase == "opening":
            await asyncio.sleep(0.001)
        sent = await driver.request("GET", "/v0/topics")
        error = json.loads(sent.body)["error"]
        assert (sent.status, error["code"]) == (503, "storage_unavailable")
        assert error["detail"] == {"reason": "corrupt"}
        assert "offset 7" in error["message"]
        assert [type(e) for e in seen] == [Corrupt]
        await lifespan.stop()
        assert driver.closed_engines == []

    run(go())


def test_shutdown_lets_waiters_go_and_staged_writes_finish() -> None:
    driver = Driver(lambda _: None)

    def end_waits() -> None:
        waits = [c for c in driver.http.calls if c.route == "diff"]
        driver.http.bridge.complete(waits[0].token, 200, b"what there is")

    driver.http.close = end_waits  # type: ignore[method-assign]

    async def go() -> None:
        lifespan = Lifespan(driver)
        await lifespan.start()
        await driver.ready()
        wait = asyncio.ensure_future(driver.request("POST", "/v0/topics/a/diff", b"{}"))
        write = asyncio.ensure_future(driver.request("POST", "/v0/topics/a", b"{}"))
        while len(driver.http.calls) < 2:
            await asyncio.sleep(0)
        stopping = asyncio.ensure_future(lifespan.stop())
        sent = await wait
        assert (sent.status, sent.body) == (200, b"what there is")
        assert not driver.http.ready
        assert await code_of(driver) == (503, "shutting_down")
        assert not stopping.done()
        assert driver.closed_engines == []
        token = next(c.token for c in driver.http.calls if c.route == "write")
        driver.http.bridge.complete(token, 200, b"acked")
        assert (await write).body == b"acked"
        await stopping
        assert driver.closed_engines == ["engine"]

    run(go())


def test_a_shutdown_waits_no_longer_than_it_may() -> None:
    driver = Driver(lambda _: None, shutdown_timeout_ms=20)

    async def go() -> None:
        lifespan = Lifespan(driver)
        await lifespan.start()
        await driver.ready()
        write = asyncio.ensure_future(driver.request("POST", "/v0/topics/a", b"{}"))
        while not driver.http.calls:
            await asyncio.sleep(0)
        await lifespan.stop()
        assert lifespan.sent[-1] == "lifespan.shutdown.complete"
        sent = await write
        assert (sent.status, json.loads(sent.body)["error"]["code"]) == (503, "shutting_down")
        assert int(sent.headers[b"retry-after"]) >= 1

    run(go())


def test_a_server_without_lifespan_gets_the_engine_at_the_first_request() -> None:
    driver = Driver()

    async def go() -> None:
        assert driver.lifespan.phase == "new"
        assert await code_of(driver) == (503, "not_ready")
        while driver.lifespan.phase == "opening":
            await asyncio.sleep(0.001)
        assert await code_of(driver) == (200, "")

    run(go())


def test_without_lifespan_a_request_waits_for_the_engine() -> None:
    """Probes do not: they ask what is."""
    driver, recovered = recovering()

    async def go() -> None:
        waiting = [
            asyncio.ensure_future(driver.request(method, path))
            for method, path in (("GET", "/v0/topics"), ("GET", "/v0/topics/a"))
        ]
        while driver.lifespan.phase == "new":
            await asyncio.sleep(0)
        assert await code_of(driver) == (503, "not_ready")
        assert (await driver.request("GET", "/healthz")).status == 200
        assert not any(request.done() for request in waiting)
        recovered.set()
        assert [(await request).status for request in waiting] == [200, 200]

    run(go())


def test_without_lifespan_a_request_gets_why_the_engine_is_not_open() -> None:
    def fail() -> Any:
        raise OSError("the disk is gone")

    driver = Driver(open_engine=fail)

    async def go() -> None:
        assert await code_of(driver, "/v0/topics") == (503, "storage_unavailable")

    run(go())


def test_a_block_opens_and_closes_the_engine_of_a_mounted_application() -> None:
    """Again and again, as test clients of frameworks do with one application."""
    driver = Driver()

    async def go() -> None:
        for times in (1, 2):
            async with driver.app.running() as app:
                assert app is driver.app
                assert await code_of(driver) == (200, "")
            assert driver.closed_engines == ["engine"] * times
            assert await code_of(driver, "/v0/topics") == (503, "shutting_down")

    run(go())


def test_a_block_raises_what_keeps_the_engine_from_opening() -> None:
    def fail() -> Any:
        raise OSError("the disk is gone")

    driver = Driver(open_engine=fail)

    async def go() -> None:
        with pytest.raises(OSError, match="the disk is gone"):
            async with driver.app.running():
                raise AssertionError("not reached")

    run(go())


def test_a_shutdown_during_recovery_closes_what_it_opened() -> None:
    driver, recovered = recovering()

    async def go() -> None:
        lifespan = Lifespan(driver)
        await lifespan.start()
        stopping = asyncio.ensure_future(lifespan.stop())
        while driver.lifespan.phase == "opening":
            await asyncio.sleep(0)
        assert await code_of(driver) == (503, "shutting_down")
        recovered.set()
        await stopping
        assert driver.closed_engines == ["engine"]

    run(go())
