"""The transport of the asyncio client: aiohttp, with its own connections for each event loop."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import io
import os
import weakref
from collections.abc import Awaitable, Callable, Mapping
from typing import Generic, TypeVar

import aiohttp
from yarl import URL

from ..client.closing import CancelScope, current_scope
from .greenlets import spawn, wait
from .transport import (
    CUT_OFF,
    EVENTS,
    NO_ANSWER,
    NO_BYTE,
    Answer,
    NoAnswer,
    Options,
    PoolKind,
    closed,
    forked,
    is_cancelled,
    not_connected,
    waking,
)

T = TypeVar("T")


class AsyncTransport:
    """Keep-alive connections by loop and pool. Calls run in greenlets that tasks await."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._base = options.url.rstrip("/")
        self._pid = os.getpid()
        self._ended = False
        self._loops: dict[asyncio.AbstractEventLoop, Sessions] = {}

    def _here(self) -> Sessions:
        if self._pid != os.getpid():
            raise forked()
        if self._ended:
            raise closed()
        loop = asyncio.get_running_loop()
        found = self._loops.get(loop)
        if found is None:
            for gone in [known for known in list(self._loops) if known.is_closed()]:
                del self._loops[gone]
            found = self._loops[loop] = Sessions(self._options)
        return found

    def request(
        self,
        kind: PoolKind,
        method: str,
        target: str,
        headers: Mapping[str, str],
        body: bytes | None,
        timeout: float,
        partly: bool = False,
    ) -> Answer:
        here = self._here()
        limits = here.limits(timeout)

        async def send() -> Answer:
            url = URL(self._base + target, encoded=True)
            async with here.sessions[kind].request(
                method,
                url,
                data=_payload(body),
                headers=headers,
                timeout=limits,
                allow_redirects=False,
            ) as response:
                return await (_partly(response) if partly else _whole(response))

        return self._waited(here, send)

    def stream(
        self, target: str, headers: Mapping[str, str], timeout: float, idle: float
    ) -> AsyncStream | Answer:
        here = self._here()

        async def send() -> AsyncStream | Answer:
            url = URL(self._base + target, encoded=True)
            session = here.sessions[PoolKind.STREAM]
            async with asyncio.timeout(timeout):
                response = await session.get(
                    url, headers=headers, timeout=here.limits(None), allow_redirects=False
                )
                if response.status == 200 and response.content_type == EVENTS:
                    return AsyncStream(response, here)
                async with response:
                    return await _whole(response)

        return self._waited(here, send)

    def _waited(self, here: Sessions, send: Callable[[], Awaitable[T]]) -> T:
        """Waits for a request, or until the client is closed."""
        try:
            return here.until_closed(send)
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            tls = isinstance(error, aiohttp.ClientSSLError)
            late = isinstance(error, TimeoutError)
            raise NoAnswer(_reason(error), sent=False, lasting=tls, timed_out=late) from error
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            late = isinstance(error, TimeoutError)
            raise NoAnswer(_reason(error), sent=True, timed_out=late) from error

    def begin(self, call: Callable[[], T]) -> BackgroundCall[T]:
        return BackgroundCall(call, self._here())

    def sleep(self, seconds: float) -> None:
        here = self._here()
        here.until_closed(lambda: asyncio.sleep(seconds))

    def close(self) -> None:
        self._ended = True
        if self._pid != os.getpid():
            return
        loops, self._loops = self._loops, {}
        for loop, sessions in loops.items():
            if loop is asyncio.get_running_loop():
                wait(sessions.close())
            elif not loop.is_closed():
                with contextlib.suppress(RuntimeError):
                    asyncio.run_coroutine_threadsafe(sessions.close(), loop)


# aiohttp warns if it has to send a larger body in one piece.
LARGE = 1 << 20


def _payload(body: bytes | None) -> bytes | io.BytesIO | None:
    return body if body is None or len(body) < LARGE else io.BytesIO(body)


async def once(
    request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType
) -> aiohttp.ClientResponse:
    """Sends a request once. aiohttp would otherwise repeat one without a response, silently."""
    try:
        return await send(request)
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
        if isinstance(error, aiohttp.ClientConnectorError):
            raise
        raise NoAnswer(_reason(error), sent=True) from error


def _reason(error: Exception) -> str:
    """What went wrong, without the names of aiohttp's objects."""
    match error:
        case aiohttp.ClientConnectorError():
            return not_connected(error.os_error)
        case aiohttp.ConnectionTimeoutError():
            return str(error)
        case aiohttp.ServerDisconnectedError():
            return NO_ANSWER
        case aiohttp.ClientPayloadError():
            return CUT_OFF
        case TimeoutError():
            return NO_BYTE
        case OSError():
            return f"the connection ended: {error.strerror or error}"
    return str(error) or type(error).__name__


class Sessions:
    """The connections of one loop, and the calls that wait on them."""

    def __init__(self, options: Options) -> None:
        self._scope = CancelScope()
        self._connect = options.connect_timeout
        context = options.tls()
        self.sessions = {
            kind: aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    limit=options.pool if kind in (PoolKind.HOT, PoolKind.PLAIN) else 0,
                    force_close=kind is PoolKind.STREAM,
                    ssl=True if context is None else context,
                ),
                headers=options.headers,
                cookie_jar=aiohttp.DummyCookieJar(),
                middlewares=(once,),
                auto_decompress=False,
            )
            for kind in PoolKind
        }
        self.streams: weakref.WeakSet[AsyncStream] = weakref.WeakSet()

    def limits(self, timeout: float | None) -> aiohttp.ClientTimeout:
        """The timeouts of a request; `None` for a stream, which has its own."""
        connect = self._connect if timeout is None else min(self._connect, timeout)
        return aiohttp.ClientTimeout(
            total=None, connect=timeout, sock_connect=connect, sock_read=timeout
        )

    def until_closed(self, work: Callable[[], Awaitable[T]]) -> T:
        """Waits for `work`. Raises `Closed` when this scope, or that of the call, is cancelled
        first.
        """
        return wait(self._until_closed(work))

    async def _until_closed(self, work: Callable[[], Awaitable[T]]) -> T:
        task = asyncio.current_task()
        assert task is not None
        if is_cancelled(self._scope):
            raise closed()
        before = task.cancelling()
        woken = False

        def wake() -> None:
            nonlocal woken
            if not woken:
                woken = True
                task.cancel()

        try:
            with waking(self._scope, wake):
                return await work()
        except asyncio.CancelledError:
            # If someone else cancelled the task as well, it stays cancelled.
            if woken and task.uncancel() <= before:
                raise closed() from None
            raise

    async def close(self) -> None:
        """Wakes waiting calls, then closes the connections."""
        self._scope.cancel()
        await asyncio.sleep(0)
        for stream in list(self.streams):
            stream.close()
        for session in self.sessions.values():
            await session.close()


class BackgroundCall(Generic[T]):
    """A call in its own task, which is not cancelled with the call that started it."""

    def __init__(self, call: Callable[[], T], here: Sessions) -> None:
        self._here = here
        context = contextvars.copy_context()
        context.run(current_scope.set, None)
        self._task = asyncio.create_task(spawn(call), name="topics-prefetch", context=context)
        # Retrieve the exception: asyncio would log it if no caller asks for the result.
        self._task.add_done_callback(lambda task: task.cancelled() or task.exception())

    def result(self) -> T:
        return self._here.until_closed(lambda: self._task)


class AsyncStream:
    """A response that is read while it goes on."""

    def __init__(self, response: aiohttp.ClientResponse, here: Sessions) -> None:
        self._response = response
        self._here = here
        self._closed = False
        here.streams.add(self)

    def read(self, wait: float | None) -> bytes | None:
        if self._closed:
            return b""
        content = self._response.content
        try:
            if (ready := content.read_nowait()) or content.at_eof():
                return ready
        except (aiohttp.ClientError, OSError):
            return b""
        if wait == 0:
            return None

        async def more() -> bytes | None:
            try:
                async with asyncio.timeout(wait):
                    return await content.readany()
            except TimeoutError:
                return None
            except (aiohttp.ClientError, OSError, RuntimeError):
                # The connection broke, or `close` was called.
                return b""

        return self._here.until_closed(more)

    def close(self) -> None:
        self._closed = True
        self._response.close()

    def __del__(self) -> None:
        # An abandoned iterator leaves the connection in the middle of a response.
        self._response.close()


async def _partly(response: aiohttp.ClientResponse) -> Answer:
    headers = {name.lower(): value for name, value in response.headers.items()}
    pieces: list[bytes] = []
    try:
        async for piece in response.content.iter_any():
            pieces.append(piece)
    except (aiohttp.ClientError, OSError):
        return Answer(response.status, headers, b"".join(pieces), whole=False)
    return Answer(response.status, headers, b"".join(pieces))


async def _whole(response: aiohttp.ClientResponse) -> Answer:
    headers = {name.lower(): value for name, value in response.headers.items()}
    return Answer(response.status, headers, await response.read())
