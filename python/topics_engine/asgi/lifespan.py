"""The lifespan of the engine behind the application: opening, ready, draining, closed, or failed.

Opening recovers, which may take long, so it runs in a thread while the server already answers 503.
Closing syncs and writes snapshots, and runs in a thread, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Literal, TypeVar

from .bridge import CoreHttp, LoopBridge
from .messages import HttpError, Response
from .signals import signals

T = TypeVar("T")
Phase = Literal["new", "opening", "ready", "failed", "draining", "closed"]

# The engine, and the native object that serves it on a loop.
Opened = tuple[Any, CoreHttp]


class EngineLifespan:
    """Opens and closes the engine, and knows whether verbs may run."""

    def __init__(
        self,
        open_engine: Callable[[], Opened],
        close_engine: Callable[[Any], None],
        *,
        version: str,
        progress: Callable[[], float] = float,
    ) -> None:
        self._open = open_engine
        self._close = close_engine
        self._version = version
        self._progress = progress
        self._created_at = time.monotonic()
        self.phase: Phase = "new"
        self.failure: BaseException | None = None
        self.engine: Any = None
        self.bridge: LoopBridge | None = None
        self.on_failure: Callable[[BaseException], None] | None = None
        self.on_ready: Callable[[CoreHttp, LoopBridge], None] | None = None
        self.on_shutdown: Callable[[], None] | None = None
        self.open_streams: Callable[[], int] = int
        self.watches_signals = True
        self._opening: asyncio.Task[None] | None = None
        self._on_demand = False
        self._in_flight = 0

    def start(self) -> None:
        """Starts to open the engine, also after a close; nothing if it is open or opening."""
        if self.phase in ("new", "closed", "failed"):
            self.phase = "opening"
            self.failure = None
            self._opening = asyncio.get_running_loop().create_task(self._recover())
            if self.watches_signals:
                signals.watch(self, self.begin_shutdown, self.open_streams)

    async def open(self) -> None:
        """Opens the engine; raises what keeps it from opening."""
        self.start()
        await self._opened()
        if self.failure is not None:
            raise self.failure

    def start_on_demand(self) -> None:
        """Starts at the first request, under a server without lifespan."""
        if self.phase == "new":
            self._on_demand = True
            self.start()

    async def opened_on_demand(self) -> None:
        """Waits for the engine, if the first request has started it: nothing else could."""
        if self._on_demand and self.phase == "opening":
            await self._opened()

    @property
    def opening(self) -> asyncio.Task[None] | None:
        """What ends when the engine is open or has failed to open; `None` if it is not opening."""
        return self._opening if self.phase == "opening" else None

    async def _opened(self) -> None:
        if self._opening is not None:
            # A client that disconnects does not cancel it.
            await asyncio.shield(self._opening)

    async def _recover(self) -> None:
        try:
            engine, http = await run_in_thread(self._open, "topics-open")
        except Exception as failure:
            self.failure = failure
            self.phase = "failed"
            if self.on_failure is not None:
                self.on_failure(failure)
            return
        self.engine = engine
        self.bridge = LoopBridge(http)
        if self.phase == "opening":
            self.phase = "ready"
            if self.on_ready is not None:
                self.on_ready(http, self.bridge)

    def begin_shutdown(self) -> None:
        """Accepts no new work and ends long waits. Idempotent; runs on the loop."""
        if self.phase not in ("new", "opening", "ready"):
            return
        self.phase = "draining"
        if self.on_shutdown is not None:
            self.on_shutdown()
        if self.bridge is not None:
            self.bridge.end_waits()

    async def close(self, timeout: float) -> None:
        """Waits for open requests, at most `timeout` seconds, then closes the engine."""
        self.begin_shutdown()
        signals.forget(self)
        if self._opening is not None:
            await self._opening
        deadline = time.monotonic() + timeout
        while self._in_flight and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        if self.bridge is not None:
            self.bridge.end_waits()
            self.bridge.close()
            self.bridge = None
        engine, self.engine = self.engine, None
        if self.phase != "failed":
            self.phase = "closed"
        if engine is not None:
            try:
                await run_in_thread(lambda: self._close(engine), "topics-close")
            except Exception as failure:
                self.failure = failure
                raise

    @contextlib.contextmanager
    def using(self) -> Iterator[LoopBridge]:
        """The engine for one request, which a shutdown waits for; 503 if it is not ready."""
        if self.phase != "ready" or self.bridge is None:
            raise self._unavailable()
        self._in_flight += 1
        try:
            yield self.bridge
        finally:
            self._in_flight -= 1

    def _unavailable(self) -> HttpError:
        if self.phase in ("draining", "closed"):
            return HttpError(503, "shutting_down", "the server is shutting down")
        if self.phase == "failed":
            code = getattr(self.failure, "code", type(self.failure).__name__)
            reason = getattr(self.failure, "detail", {}).get("reason", code)
            message = f"the data directory could not be opened: {self.failure}"
            return HttpError(503, "storage_unavailable", message, {"reason": str(reason)})
        elapsed = int((time.monotonic() - self._created_at) * 1000)
        progress = {"replay_progress": self._progress(), "recovering_ms": elapsed}
        return HttpError(503, "not_ready", "the engine is recovering: try again later", progress)

    def health(self) -> Response:
        """The health response: the process runs, whatever the engine does."""
        uptime = int((time.monotonic() - self._created_at) * 1000)
        answer = {"status": "ok", "version": self._version, "uptime_ms": uptime}
        return Response(200, json.dumps(answer, separators=(",", ":")).encode())


async def run_in_thread(work: Callable[[], T], name: str) -> T:
    """Runs blocking work in its own thread and awaits the result.

    Not on the loop's executor: all its threads may be waiting for a sync when the engine closes.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def resolve(result: T | None, failure: BaseException | None) -> None:
        if done.done():
            return
        if failure is not None:
            done.set_exception(failure)
        else:
            done.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result: T | None = None
        failure: BaseException | None = None
        try:
            result = work()
        except BaseException as error:
            failure = error
        loop.call_soon_threadsafe(resolve, result, failure)

    threading.Thread(target=run, name=name, daemon=True).start()
    return await done
