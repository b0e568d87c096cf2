"""Drives the application with ASGI messages, without a server, on a scripted native module."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from topics_engine import _core
from topics_engine.asgi.access import Guard, LoopbackGuard
from topics_engine.asgi.application import App
from topics_engine.asgi.lifespan import EngineLifespan
from topics_engine.asgi.settings import Settings

from .waiting import DEADLINE

Completion = tuple[int, int, bytes]
T = TypeVar("T")


class ScriptedBridge:
    """An eventfd and a queue of completions."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK)
        self.queue: list[Completion] = []

    def __del__(self) -> None:
        os.close(self.fd)

    def complete(self, token: int, status: int, body: bytes) -> None:
        self.queue.append((token, status, body))
        os.eventfd_write(self.fd, 1)

    def drain(self) -> list[Completion]:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.fd)
        queue, self.queue = self.queue, []
        return queue


@dataclass
class Call:
    route: str
    name: str
    query: bytes
    body: bytes
    flags: int
    token: int
    key: bytes
    part: str
    grant: int
    trace: tuple[bytes | None, bytes | None] = (None, None)


class ScriptedHttp:
    """Records calls; `answer` returns the answer of each, or `None` to leave it waiting."""

    def __init__(self, answer: Callable[[Call], tuple[int, bytes] | None]) -> None:
        self.bridge = ScriptedBridge()
        self.answer = answer
        self.calls: list[Call] = []
        self.cancelled: list[int] = []
        self.pulls: list[tuple[list[bytes], int] | None] = []
        self.why: tuple[str, str] | None = None
        self.messages: list[tuple[int, bytes, bool, bool]] = []
        self.flushes = 0
        self.staged = False
        self.stage: list[Completion] = []
        self.closed = False
        self.ready = True

    def call(
        self,
        verb: str,
        name: str,
        query: bytes,
        body: bytes,
        flags: int,
        token: int,
        key: bytes = b"",
        subresource: str = "",
        grant: int = 0,
        traceparent: bytes | None = None,
        tracestate: bytes | None = None,
    ) -> tuple[int, bytes] | None:
        trace = traceparent, tracestate
        call = Call(verb, name, query, body, flags, token, key, subresource, grant, trace)
        self.calls.append(call)
        return self.answer(call)

    def pull(self, token: int) -> tuple[list[bytes], int] | None:
        return self.pulls.pop(0) if self.pulls else ([], 2)

    def failure(self, token: int) -> tuple[str, str] | None:
        return self.why

    def message(self, token: int, text: bytes, read: bool, write: bool) -> None:
        self.messages.append((token, text, read, write))

    def flush(self) -> None:
        self.flushes += 1
        self.staged = False
        self.bridge.queue += self.stage
        self.stage = []

    def cancel(self, token: int) -> None:
        self.cancelled.append(token)

    def set_ready(self, ready: bool) -> None:
        self.ready = ready

    def close(self) -> None:
        self.closed = True


@dataclass
class Sent:
    """A response, assembled from its messages."""

    status: int = 0
    headers: dict[bytes, bytes] = field(default_factory=dict)
    body: bytes = b""

    def take(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = dict(message["headers"])
        else:
            self.body += message.get("body", b"")


class Driver:
    """An application on a scripted native module, and requests to it."""

    def __init__(
        self,
        answer: Callable[[Call], tuple[int, bytes] | None] = lambda _: (200, b"{}"),
        *,
        guard: Guard | None = None,
        open_engine: Callable[[], Any] | None = None,
        progress: Callable[[], float] = float,
        **settings: Any,
    ) -> None:
        self.http = ScriptedHttp(answer)
        self.closed_engines: list[Any] = []
        self.lifespan = EngineLifespan(
            open_engine or (lambda: ("engine", self.http)),
            self.closed_engines.append,
            version="test",
            progress=progress,
        )
        self.app = App(
            self.lifespan, guard or LoopbackGuard(), Settings(**settings), _core.UnsentBytes()
        )

    async def ready(self) -> None:
        self.lifespan.start()
        while self.lifespan.phase == "opening":
            await asyncio.sleep(0)

    async def request(
        self,
        method: str,
        path: str,
        body: bytes | list[bytes] = b"",
        *,
        headers: dict[str, str] | None = None,
        query: bytes = b"",
        leave: asyncio.Event | None = None,
        taken: asyncio.Event | None = None,
        scope: dict[str, Any] | None = None,
    ) -> Sent:
        """Sends one request. `leave` is the time at which the client disconnects; without it, it
        stays. Only the head of the response is consumed before `taken`.
        """
        chunks = [body] if isinstance(body, bytes) else list(body)
        given = {"host": "127.0.0.1:4000"}
        if any(chunks):
            given |= {"content-type": "application/json"}
            given |= {"content-length": str(sum(map(len, chunks)))}
        given |= headers or {}
        full: dict[str, Any] = {
            "type": "http",
            "http_version": "1.1",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": query,
            "headers": [(k.encode(), v.encode()) for k, v in given.items() if v != ""],
        } | (scope or {})

        async def receive() -> Any:
            if chunks:
                part = chunks.pop(0)
                return {"type": "http.request", "body": part, "more_body": bool(chunks)}
            await (leave or asyncio.Event()).wait()
            return {"type": "http.disconnect"}

        sent = Sent()

        async def send(message: Any) -> None:
            if taken is not None and message["type"] == "http.response.body":
                await taken.wait()
            sent.take(message)

        await self.app(full, receive, send)
        return sent


def run(work: Coroutine[Any, Any, T]) -> T:
    """Runs a test of the application; a test that hangs fails."""

    async def bounded() -> T:
        async with asyncio.timeout(DEADLINE):
            return await work

    return asyncio.run(bounded())
