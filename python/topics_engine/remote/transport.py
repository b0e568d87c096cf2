"""The transport protocol: the seam between the remote backend and an HTTP library.

The code above it is written once, as blocking calls. The sync client blocks its thread; the asyncio
client runs the calls in greenlets (`greenlets.py`), which yield to the event loop.
"""

from __future__ import annotations

import contextlib
import os
import ssl
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol, TypeAlias, TypeVar
from urllib.parse import urlsplit

from ..client import arguments
from ..client.closing import CancelScope, current_scope
from ..errors import Closed, InvalidRequest
from .prefetch import PendingCall

T = TypeVar("T")

Verify: TypeAlias = "bool | str | os.PathLike[str] | ssl.SSLContext"


class PoolKind(Enum):
    """Requests of one kind share a pool of connections."""

    HOT = "hot"
    """Reads and writes that do not wait. The server answers them faster on connections that carry
    only such requests."""
    PLAIN = "plain"
    WAIT = "wait"
    """Requests that may wait long; the number of connections is not limited."""
    STREAM = "stream"
    """Streams; each has its own connection, which is not reused."""


def check_url(url: str) -> None:
    """Checks the URL of a server. The error does not repeat a password.

    Raises:
        InvalidRequest: a client cannot use it.
    """
    shown = "the URL of the server" if "@" in url else repr(url)
    # `urlsplit` leaves line breaks out.
    if not url.isascii() or not url.isprintable() or " " in url:
        raise InvalidRequest(f"{shown} has spaces, line breaks or other characters of no URL")
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise InvalidRequest(f"{shown} is malformed: {error}") from None
    if "@" in parts.netloc:
        raise InvalidRequest(
            f"{shown} has a user or a password: pass scheme, host, port and path only, and the API "
            "key apart from it"
        )
    if parts.scheme not in ("http", "https") or not host:
        hint = "" if "//" in url or "@" in url else f": give {'http://' + url!r}"
        raise InvalidRequest(f"{shown} is not an http:// or https:// URL{hint}")
    if "?" in url or "#" in url:
        raise InvalidRequest(
            f"{shown} has a query or a fragment: pass scheme, host, port and path only"
        )


@dataclass(frozen=True, slots=True)
class Options:
    """The address of a server, and the timeouts of its client."""

    url: str
    api_key: str | None = None
    deadline: float = 30.0
    """Seconds within which a call succeeds or raises, retries included."""
    timeout: float = 10.0
    """Seconds without a byte after which an attempt fails, in addition to the wait of a request."""
    connect_timeout: float = 5.0
    pool: int = 16
    """Connections that are kept of each kind."""
    heartbeat: float = 5.0
    """Seconds between heartbeats of a stream."""
    verify: Verify = True
    """TLS verification: True, False, a file of certificate authorities, or a context."""

    def __post_init__(self) -> None:
        check_url(self.url)
        if self.api_key is not None and (
            not self.api_key.isascii() or not self.api_key.isprintable()
        ):
            raise InvalidRequest("the API key has characters that are not printable ASCII")

    @property
    def secure(self) -> bool:
        return urlsplit(self.url).scheme == "https"

    @property
    def host(self) -> str:
        return urlsplit(self.url).hostname or ""

    @property
    def port(self) -> int | None:
        return urlsplit(self.url).port

    @property
    def prefix(self) -> str:
        """The prefix of every path."""
        return urlsplit(self.url).path.rstrip("/")

    @property
    def headers(self) -> dict[str, str]:
        """The headers of every request."""
        found = {"User-Agent": "topics-engine", "Accept-Encoding": "identity"}
        if self.api_key is not None:
            found["Authorization"] = f"Bearer {self.api_key}"
        return found

    def tls(self) -> ssl.SSLContext | None:
        """The TLS context; `None` for http."""
        if not self.secure:
            return None
        if isinstance(self.verify, ssl.SSLContext):
            return self.verify
        if isinstance(self.verify, bool):
            context = ssl.create_default_context()
            if not self.verify:
                context.check_hostname = False
                context.verify_mode = ssl.CERT_NONE
            return context
        return ssl.create_default_context(cafile=os.fspath(self.verify))


DURATIONS = ("deadline", "timeout", "connect_timeout", "heartbeat")


def options_of(url: str, api_key: str | None, *, pool: int, **given: Any) -> Options:
    """Options, checked. Durations may be seconds, a `timedelta` or text."""
    arguments.text("url", url)
    arguments.optional_text("api_key", api_key)
    for name in DURATIONS:
        given[name] = arguments.seconds(name, given[name])
        if not given[name]:
            message = f"{name} must be greater than 0, not {given[name]:g}"
            raise InvalidRequest(message, detail={"field": name})
    return Options(url, api_key, pool=arguments.count("pool", pool), **given)


EVENTS = "text/event-stream"


def content_of(headers: Mapping[str, str]) -> str:
    """The content type, without its parameters, of headers by lower-case name."""
    return headers.get("content-type", "").partition(";")[0].strip().lower()


@dataclass(frozen=True, slots=True)
class Answer:
    """A response, as far as it was received."""

    status: int
    headers: Mapping[str, str]
    """By lower-case name."""
    body: bytes
    whole: bool = True
    """Whether the body is complete."""


class NoAnswer(Exception):
    """An attempt without a complete response."""

    def __init__(
        self, reason: str, *, sent: bool, lasting: bool = False, timed_out: bool = False
    ) -> None:
        super().__init__(reason)
        self.timed_out = timed_out
        """Whether the time was over, rather than the connection."""
        self.sent = sent
        """Whether the server may have executed the request."""
        self.lasting = lasting
        """Whether a retry would fail in the same way, as with an untrusted certificate."""


NO_BYTE = "the server sent nothing for too long"
NO_ANSWER = "the connection was closed without an answer"
CUT_OFF = "the answer was cut off"


def not_connected(error: OSError) -> str:
    """Why no connection was made, without the address, which the caller's message has."""
    number = error.errno or 0
    # The text of asyncio's errors has only the address. Names and TLS have numbers of their own.
    if number > 0 and not isinstance(error, ssl.SSLError):
        return f"cannot connect: {os.strerror(number)}"
    return f"cannot connect: {error.strerror or error}"


class Stream(Protocol):
    """A response that is read while it goes on. One reader; `close` from any thread."""

    def read(self, wait: float | None) -> bytes | None:
        """A piece; `None` if none came within `wait` seconds, empty at the end."""

    def close(self) -> None:
        """Ends the connection and wakes the reader. Idempotent."""


class Transport(Protocol):
    """Requests to one server.

    A waiting call raises `Closed` when the transport is closed, or when its cancel scope is
    cancelled.
    """

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
        """Sends a request once; raises `NoAnswer` without a response. With `partly`, an incomplete
        body is returned instead.
        """

    def stream(
        self, target: str, headers: Mapping[str, str], timeout: float, idle: float
    ) -> Stream | Answer:
        """Sends a GET; a 200 with events is returned as a stream, which is dead after `idle`
        seconds of silence.
        """

    def begin(self, call: Callable[[], T]) -> PendingCall[T]:
        """Starts a call in the background."""

    def sleep(self, seconds: float) -> None:
        """Waits."""

    def close(self) -> None:
        """Wakes every call with `Closed`. Idempotent."""


WakerKeys: TypeAlias = tuple[tuple[CancelScope, object], ...]


def is_cancelled(scope: CancelScope) -> bool:
    """Whether this scope, or that of the current call, is cancelled."""
    mine = current_scope.get()
    return scope.is_cancelled or (mine is not None and mine.is_cancelled)


def add_waker(scope: CancelScope, waker: Callable[[], object]) -> WakerKeys:
    """Registers a waker with this scope and that of the current call."""
    mine = current_scope.get()
    if mine is None:
        return ((scope, scope.add_waker(waker)),)
    return (scope, scope.add_waker(waker)), (mine, mine.add_waker(waker))


def remove_wakers(keys: WakerKeys) -> None:
    """Unregisters it from both."""
    for scope, key in keys:
        scope.remove_waker(key)


@contextlib.contextmanager
def waking(scope: CancelScope, waker: Callable[[], object]) -> Iterator[None]:
    """Registers a waker for the duration of the block."""
    keys = add_waker(scope, waker)
    try:
        yield
    finally:
        remove_wakers(keys)


def closed() -> Closed:
    """The error of calls on a closed client."""
    return Closed("the client is closed")


def forked() -> Closed:
    """The error of calls in a forked child: the connections belong to the parent."""
    return Closed("this client was opened in the parent process: connect again after a fork")
