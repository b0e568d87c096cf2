"""The application under uvicorn, one process, from its settings to its end."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import uvicorn

from .. import _core
from ..asgi import App, build
from ..asgi.access import check_bind
from ..asgi.keys import Keys
from ..asgi.settings import Settings
from ..errors import TopicsError
from .hot import HotProtocols
from .limits import Limits, set_user_timeout
from .protocol import BoundedProtocol
from .reload import Reloader, set_level
from .tls import Certificate, Config
from .websocket import BoundedWebSocket

# With a busy Python thread beside the event loop, the default of 5 ms costs the loop most of its
# turns.
SWITCH_INTERVAL = 0.0001

# Beside the files of segments that are read: the log's, a checkpoint's, and the process's own.
OTHER_DESCRIPTORS = 256

# How long a shutdown waits for streams to say their last words.
STREAMS_SECONDS = 1.0

HINTS = """
Try, in another terminal:

  curl {url}/v0/topics/greetings -H 'Content-Type: application/json' \\
       -d '{{"records":[{{"data":"hello"}},{{"data":{{"any":"JSON"}}}}]}}'
  curl {url}/v0/topics/greetings/diff -H 'Content-Type: application/json' -d '{{"from_seq":0}}'
  {program} --url {url} tail -f greetings
"""


class Server(uvicorn.Server):
    """uvicorn's server, which tells the application of its end before it waits for requests."""

    def __init__(self, config: uvicorn.Config, app: App, reloader: Reloader) -> None:
        super().__init__(config)
        self._app = app
        self._reloader = reloader

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._reloader.install()
        await super().startup(sockets)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # Before uvicorn waits for open requests: those that wait on purpose end now.
        self._app.lifespan.begin_shutdown()
        # Sockets say so to their clients before uvicorn closes them.
        deadline = time.monotonic() + STREAMS_SECONDS
        while self._app.streams and time.monotonic() < deadline:
            await asyncio.sleep(0.005)
        await super().shutdown(sockets)


def listen(host: str, port: int, stall: float) -> socket.socket:
    """The listening socket, bound before the engine opens so that its URL is known."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        set_user_timeout(sock, stall)
        sock.bind((host, port))
        # Until the loop accepts, a connection waits instead of being refused.
        sock.listen(2048)
    except OSError:
        sock.close()
        raise
    sock.set_inheritable(False)
    return sock


def raise_descriptor_limit() -> int:
    """As many as this process may have: a connection is one, a segment that is read two."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return most if most != resource.RLIM_INFINITY else sys.maxsize


class Refusal(asyncio.Protocol):
    """A connection that there is no room for."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.abort()


def engine_descriptors(settings: Settings, most: int) -> int:
    """Those of `most` that are the engine's: at most half, which it keeps to by itself."""
    files = int(settings.engine.get("max_open_files", _core.defaults()["max_open_files"]))
    return min(files + OTHER_DESCRIPTORS, most // 2) if files else most // 2


def with_reserve(protocol: Callable[..., Any], limit: int) -> Callable[..., Any]:
    """Makes protocols while there are descriptors left for the engine, however many clients come:
    without one for its next file it would take no writes.
    """

    def make(**given: Any) -> Any:
        # The lowest that is free: all below it are taken.
        free = os.dup(sys.stdout.fileno())
        os.close(free)
        return protocol(**given) if free < limit else Refusal()

    return make


def url_of(sock: socket.socket, scheme: str) -> str:
    host, port = sock.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def serve(
    settings: Settings,
    read_settings: Callable[[], Settings],
    *,
    fixed_keys: str = "",
    hints: bool = False,
    access_log: bool = False,
) -> BaseException | None:
    """Serves until SIGTERM or SIGINT, and returns the failure of the engine that ended it, if one
    did. On SIGHUP `read_settings` gives the settings as they are then; of the keys, `fixed_keys`
    stay.

    Raises `BindRefused`, `TlsRefused`, `OSError` or a `TopicsError` when it cannot start.
    """
    # Until there is a loop that can read it again, nothing has to be.
    signal.signal(signal.SIGHUP, _ignore)
    # A malformed key stops the start before anything listens.
    keys = bool(Keys.parse(settings.api_keys, settings.api_keys_file))
    check_bind(settings.host, insecure=settings.allow_insecure_no_auth, keys=keys)
    tls = Certificate.of(settings.tls_cert, settings.tls_key)
    limits = Limits.of(settings)
    try:
        sock = listen(settings.host, settings.port, limits.stall)
    except OSError as error:
        where = f"{settings.host}:{settings.port}"
        raise OSError(f"cannot listen on {where}: {error.strerror}") from error
    try:
        # Before the address is printed: what the directory lacks is no matter of waiting.
        _core.make_directory(settings.data_dir)
    except TopicsError:
        sock.close()
        raise
    url = url_of(sock, "https" if tls else "http")
    most = raise_descriptor_limit()
    sys.setswitchinterval(SWITCH_INTERVAL)
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    set_level(settings.log_level)

    limit = most - engine_descriptors(settings, most)
    app = build(settings, url=url)
    # uvicorn's access log is written by its own protocol.
    hot = settings.hot_protocol and not access_log
    plain = partial(BoundedProtocol, limits=limits)
    config = Config(
        app,
        tls=tls.listener if tls else None,
        limits=limits,
        http=with_reserve(HotProtocols(app, settings) if hot else plain, limit),
        ws=partial(BoundedWebSocket, limits=limits),
        # What a message unpacks to would be made before it is counted.
        ws_per_message_deflate=False,
        ws_max_size=settings.max_body_bytes or sys.maxsize,
        lifespan="on",
        log_config=None,
        access_log=access_log,
        server_header=False,
        timeout_keep_alive=limits.idle,
        timeout_graceful_shutdown=max(1, settings.shutdown_timeout_ms // 1000),
        backlog=2048,
    )
    server = Server(config, app, Reloader(app, tls, read_settings, fixed_keys=fixed_keys))

    def failed(_: BaseException) -> None:
        server.should_exit = True

    app.lifespan.on_failure = failed
    print_line(f"listening on {url} (data: {os.path.abspath(settings.data_dir)})")
    if hints:
        print_line(HINTS.format(url=url, program=program()))
    # uvicorn raises a captured signal once more when it is done; the exit code is ours to choose.
    for sig in (signal.SIGTERM, signal.SIGINT):
        signal.signal(sig, _ignore)
    server.run(sockets=[sock])
    return app.lifespan.failure


def program() -> str:
    """How this program was called, so that it can be called again from here."""
    called = sys.argv[0]
    return "topics" if called.endswith(".py") else os.path.relpath(called)


def _ignore(sig: int, frame: Any) -> None:
    return


def print_line(line: str) -> None:
    print(line, flush=True)
