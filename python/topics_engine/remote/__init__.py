"""The clients of a server: the same handles over HTTP."""

from __future__ import annotations

from typing import Any

from ..client.database import Database
from ..extras import extra
from .transport import Options, Verify

__all__ = ["Options", "Verify", "connect", "connect_async"]


def connect(
    url: str,
    key: str | None = None,
    *,
    deadline: float = 30.0,
    timeout: float = 10.0,
    connect_timeout: float = 5.0,
    pool: int = 16,
    heartbeat: float = 5.0,
    verify: Verify = True,
) -> Database:
    """A server's topics, with the handles of an open directory.

    `key` is sent with every request. A call is answered within `deadline` seconds, or raises: what
    failed on the way is repeated meanwhile, with pauses that grow, where a repeat does no harm; an
    attempt of which nothing came for `timeout` seconds, besides what the call was told to wait, is
    given up. Each kind of
    request keeps `pool` connections. Streams are dead when nothing came in two and a half times
    `heartbeat`. `verify` is of TLS: True, False, a file of authorities or an `ssl.SSLContext`.
    """
    with extra("client", "connect"):
        from .backend import HttpBackend
        from .sync_transport import SyncTransport

    options = Options(url, key, deadline, timeout, connect_timeout, pool, heartbeat, verify)
    return Database(HttpBackend(SyncTransport(options), options, may_block=True))


def connect_async(url: str, key: str | None, **given: Any) -> Database:
    """The same for calls that are spawned in tasks; `topics_engine.aio` makes handles of it."""
    with extra("client", "aio.connect"):
        from .async_transport import AsyncTransport
        from .backend import HttpBackend

    options = Options(url, key, **given)
    return Database(HttpBackend(AsyncTransport(options), options, may_block=False))
