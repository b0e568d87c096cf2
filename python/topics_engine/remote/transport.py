"""The seam between what is asked of a server and the library that asks it.

Everything above is written once, as calls that return. Under the sync client they block; under the
asyncio client they give the loop back meanwhile (`greenlets.py`).
"""

from __future__ import annotations

import contextlib
import os
import ssl
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Protocol, TypeAlias, TypeVar
from urllib.parse import urlsplit

from ..client.closing import CancelScope, current_scope
from ..errors import Closed, InvalidRequest
from .page import PendingCall

T = TypeVar("T")

Verify: TypeAlias = "bool | str | os.PathLike[str] | ssl.SSLContext"


class PoolKind(Enum):
    """Requests of a kind share connections."""

    HOT = "hot"
    """Writes and reads that do not wait: the server answers them faster on connections that carry
    nothing else.
    """
    PLAIN = "plain"
    WAIT = "wait"
    """Requests that may wait long: as many connections as there are of them."""
    STREAM = "stream"
    """Streams: each has a connection, which carries nothing after it."""


@dataclass(frozen=True, slots=True)
class Options:
    """Where the server is, and how to speak to it."""

    url: str
    key: str | None = None
    deadline: float = 30.0
    """Seconds within which a call is answered, repeats included."""
    timeout: float = 10.0
    """Seconds in which nothing comes of an attempt; a request that waits has its wait besides."""
    connect_timeout: float = 5.0
    pool: int = 16
    """Connections that are kept, of each kind."""
    heartbeat: float = 5.0
    """Streams say something at least so often; after two and a half times that they are dead."""
    verify: Verify = True
    """Of TLS: True, False, a file of authorities, or a context."""

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidRequest(f"{self.url!r} is not an http:// or https:// URL")
        if parts.query or parts.fragment or parts.username:
            raise InvalidRequest(
                f"{self.url!r} has a query, fragment or user: pass scheme, host, port and path only"
            )
        if self.key is not None and (not self.key.isascii() or not self.key.isprintable()):
            raise InvalidRequest("the API key has characters that are not printable ASCII")
        for name in ("deadline", "timeout", "connect_timeout", "pool", "heartbeat"):
            if not getattr(self, name) > 0:
                raise InvalidRequest(
                    f"{name} must be greater than 0, not {getattr(self, name)!r}",
                    detail={"field": name},
                )

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
        """What every path begins with."""
        return urlsplit(self.url).path.rstrip("/")

    @property
    def headers(self) -> dict[str, str]:
        """What every request carries."""
        found = {"User-Agent": "topics-engine", "Accept-Encoding": "identity"}
        if self.key is not None:
            found["Authorization"] = f"Bearer {self.key}"
        return found

    def tls(self) -> ssl.SSLContext | None:
        """The context of TLS connections."""
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


@dataclass(frozen=True, slots=True)
class Answer:
    """A response, read as far as it came."""

    status: int
    headers: Mapping[str, str]
    """Names in lower case."""
    body: bytes
    whole: bool = True
    """Whether the body came to its end, of a request for as much of it as comes."""


class NoAnswer(Exception):
    """There is no response, or no whole one."""

    def __init__(self, reason: str, *, sent: bool, lasting: bool = False) -> None:
        super().__init__(reason)
        self.sent = sent
        """Whether the server may have acted on the request."""
        self.lasting = lasting
        """Whether another attempt would meet the same: a certificate that is not trusted."""


class Stream(Protocol):
    """A response that goes on. One reads; `close` from anywhere."""

    def read(self, wait: float | None) -> bytes | None:
        """What came, `None` when nothing came in so many seconds, nothing at the end."""

    def close(self) -> None:
        """Ends the connection, and wakes who reads. Idempotent."""


class Transport(Protocol):
    """Requests to one server. What waits in one raises `Closed` when this is closed, or when the
    scope of the calls that are being made is cancelled.
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
        """Sends once; `NoAnswer` when that came to nothing. `partly`: a body that breaks off is an
        answer, too.
        """

    def stream(
        self, target: str, headers: Mapping[str, str], timeout: float, idle: float
    ) -> Stream | Answer:
        """A GET whose response goes on if its status is 200; dead when nothing came for `idle`."""

    def begin(self, call: Callable[[], T]) -> PendingCall[T]:
        """Begins a call beside the one that is being made."""

    def sleep(self, seconds: float) -> None:
        """Waits."""

    def close(self) -> None:
        """Wakes every call with `Closed`. Idempotent."""


WakerKeys: TypeAlias = tuple[tuple[CancelScope, object], ...]


def is_cancelled(scope: CancelScope) -> bool:
    """Whether calls of this scope are not to go on here."""
    mine = current_scope.get()
    return scope.is_cancelled or (mine is not None and mine.is_cancelled)


def add_waker(scope: CancelScope, waker: Callable[[], object]) -> WakerKeys:
    """Has `waker` called when calls of this scope end, until `remove_wakers`."""
    mine = current_scope.get()
    if mine is None:
        return ((scope, scope.add_waker(waker)),)
    return (scope, scope.add_waker(waker)), (mine, mine.add_waker(waker))


def remove_wakers(keys: WakerKeys) -> None:
    """The waker is not called any more."""
    for scope, key in keys:
        scope.remove_waker(key)


@contextlib.contextmanager
def waking(scope: CancelScope, waker: Callable[[], object]) -> Iterator[None]:
    """The same for a block."""
    keys = add_waker(scope, waker)
    try:
        yield
    finally:
        remove_wakers(keys)


def closed() -> Closed:
    """What calls on a closed client raise."""
    return Closed("the client is closed")


def forked() -> Closed:
    """What they raise in a child process: connections are its parent's."""
    return Closed("this client was opened in the parent process: connect again after a fork")
