"""Runs the application under uvicorn in one process."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import uvicorn

from .. import _core
from ..asgi import App, build
from ..asgi.access import check_bind
from ..asgi.bridge import CoreHttp, LoopBridge
from ..asgi.build import warn_of_unknown_variables
from ..asgi.keys import Keys
from ..asgi.settings import Settings
from ..errors import Locked, TopicsError
from ..lockfile import holder_of
from ..settings import engine_settings
from .hot import HotProtocols
from .limits import Limits, limit_notsent, set_user_timeout
from .logs import configure
from .notify import notify
from .protocol import BoundedProtocol
from .reload import EarlySignal, Reloader, set_level
from .tls import Certificate, Config
from .websocket import BoundedWebSocket

# Seconds. With the default of 5 ms, a busy Python thread would delay the event loop for most of the
# time.
SWITCH_INTERVAL = 0.0001

# Descriptors of the engine besides segment files: log files, checkpoints, the process's own.
OTHER_DESCRIPTORS = 256

# Seconds that a shutdown waits for streams to send their last events.
STREAMS_SECONDS = 1.0

HINTS = """
Try, in another terminal:

  curl {url}/v0/topics/greetings -H 'Content-Type: application/json' \\
       -d '{{"records":[{{"data":"hello"}},{{"data":{{"any":"JSON"}}}}]}}'
  curl {url}/v0/topics/greetings/diff -H 'Content-Type: application/json' -d '{{"from_seq":0}}'
  {program} --url {url} tail -f greetings
"""


class Server(uvicorn.Server):
    """uvicorn's server; it starts the application's shutdown before it waits for requests."""

    def __init__(self, config: uvicorn.Config, app: App, reloader: Reloader) -> None:
        super().__init__(config)
        self._app = app
        self._reloader = reloader

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._reloader.install()
        await super().startup(sockets)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        notify("STOPPING=1")
        # Ends long-polling requests before uvicorn waits for open requests.
        self._app.lifespan.begin_shutdown()
        # WebSockets send their close frame before uvicorn closes them.
        deadline = time.monotonic() + STREAMS_SECONDS
        while self._app.streams and time.monotonic() < deadline:
            await asyncio.sleep(0.005)
        await super().shutdown(sockets)


def listen(host: str, port: int, stall: float) -> socket.socket:
    """Creates the listening socket, before the engine opens, so that its URL is known."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        set_user_timeout(sock, stall)
        limit_notsent(sock)
        sock.bind((host, port))
        # Connections wait in the backlog until the loop accepts them.
        sock.listen(2048)
    except OSError:
        sock.close()
        raise
    sock.set_inheritable(False)
    return sock


def inherited(fd: int, stall: float) -> socket.socket:
    """The listening socket of a supervisor, such as a socket unit of systemd."""
    try:
        sock = socket.socket(fileno=fd)
    except OSError as error:
        raise OSError(f"--fd {fd} is not a socket: {error.strerror}") from None
    try:
        if sock.family not in (socket.AF_INET, socket.AF_INET6):
            raise OSError(f"--fd {fd} is not a TCP socket")
        if not sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            raise OSError(f"--fd {fd} does not listen")
        set_user_timeout(sock, stall)
        limit_notsent(sock)
    except OSError:
        sock.close()
        raise
    sock.set_inheritable(False)
    return sock


def raise_descriptor_limit() -> int:
    """Raises the limit of file descriptors to the maximum, and returns it."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return most if most != resource.RLIM_INFINITY else sys.maxsize


class Refusal(asyncio.Protocol):
    """Aborts a connection for which there is no file descriptor to spare."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.abort()


def engine_descriptors(settings: Settings, most: int) -> int:
    """The descriptors that are reserved for the engine: at most half of `most`."""
    name = "max_open_files"
    files = int(settings.engine.get(name, engine_settings()[name].default))
    return min(files + OTHER_DESCRIPTORS, most // 2) if files else most // 2


def with_reserve(protocol: Callable[..., Any], limit: int) -> Callable[..., Any]:
    """Refuses connections that would take descriptors reserved for the engine: without one for its
    next file, it could not accept writes.
    """

    def make(**given: Any) -> Any:
        # The lowest free descriptor: all below it are in use.
        free = os.dup(sys.stdout.fileno())
        os.close(free)
        return protocol(**given) if free < limit else Refusal()

    return make


def require_unlocked(data_dir: str) -> None:
    """Raises if another process has the directory open. The engine, which opens while the server
    listens, takes the lock.
    """
    holder = holder_of(data_dir)
    if holder is not None:
        detail = {"pid": holder.pid} | ({"url": holder.url} if holder.url else {})
        raise Locked(f"{data_dir} is open in process {holder.pid}", detail=detail)


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
    fd: int | None = None,
) -> BaseException | None:
    """Serves until SIGTERM or SIGINT.

    Args:
        settings: the settings at the start.
        read_settings: returns the current settings, on SIGHUP.
        fixed_keys: keys that a reload keeps.
        hints: print commands to try.
        access_log: log every request.
        fd: descriptor of a listening socket, instead of an address.

    Returns:
        The failure of the engine that ended the server; `None` after an orderly shutdown.

    Raises:
        BindRefused: the server would be open to other machines without keys.
        TlsRefused: the certificate or its key cannot be used.
        OSError: the address cannot be listened on.
        TopicsError: the directory or the keys cannot be used.
    """
    # Until the loop runs, a SIGHUP is kept; its default would end the process.
    early = EarlySignal()
    signal.signal(signal.SIGHUP, early)
    # A malformed key fails the start before the socket is open.
    keys = bool(Keys.parse(settings.api_keys, settings.api_keys_file))
    insecure = settings.allow_insecure_no_auth
    limits = Limits.of(settings)
    if fd is None:
        check_bind(settings.host, insecure=insecure, keys=keys)
    tls = Certificate.load(settings.tls_cert, settings.tls_key)
    sock = _socket(settings, limits) if fd is None else inherited(fd, limits.stall)
    try:
        if fd is not None:
            check_bind(sock.getsockname()[0], insecure=insecure, keys=keys)
        # Fails before the address is printed if the directory cannot be created, or is open.
        _core.make_directory(settings.data_dir)
        require_unlocked(settings.data_dir)
    except (TopicsError, ValueError):
        sock.close()
        raise
    url = url_of(sock, "https" if tls else "http")
    most = raise_descriptor_limit()
    sys.setswitchinterval(SWITCH_INTERVAL)
    configure(settings.log_format, settings.audit_log)
    set_level(settings.log_level)
    warn_of_unknown_variables()

    limit = most - engine_descriptors(settings, most)
    app = build(settings, url=url)
    limits = replace(limits, unsent=app.unsent, receiving=app.receiving)
    # Only uvicorn's own protocol writes the access log.
    hot = settings.hot_protocol and not access_log
    plain = partial(BoundedProtocol, limits=limits)
    config = Config(
        app,
        tls=tls.listener if tls else None,
        limits=limits,
        http=with_reserve(HotProtocols(app, settings, limits) if hot else plain, limit),
        ws=partial(BoundedWebSocket, limits=limits),
        # A compressed message would be decompressed before its size is checked.
        ws_per_message_deflate=False,
        ws_max_size=settings.max_body_bytes or sys.maxsize,
        lifespan="on",
        log_config=None,
        # The application reads `X-Forwarded-For`, of trusted proxies only.
        proxy_headers=False,
        access_log=access_log,
        server_header=False,
        timeout_keep_alive=limits.idle,
        timeout_graceful_shutdown=max(1, settings.shutdown_timeout_ms // 1000),
        backlog=2048,
    )
    reloader = Reloader(app, tls, read_settings, fixed_keys=fixed_keys, early=early)
    server = Server(config, app, reloader)

    def failed(_: BaseException) -> None:
        server.should_exit = True

    app.lifespan.on_failure = failed
    opened = app.lifespan.on_ready

    def ready(http: CoreHttp, bridge: LoopBridge) -> None:
        if opened is not None:
            opened(http, bridge)
        notify("READY=1", f"STATUS=serving {url}")

    app.lifespan.on_ready = ready
    # `Server.shutdown` begins the shutdown, in its own order.
    app.lifespan.watches_signals = False

    def stop(sig: int, frame: Any) -> None:
        server.should_exit = True

    # A signal that comes before uvicorn's own handlers ends the server as soon as it has started.
    # uvicorn raises each signal that it handled again after the shutdown; this is the handler then.
    for sig in (signal.SIGTERM, signal.SIGINT):
        signal.signal(sig, stop)
    if hints:
        print_line(f"console: {url}/console")
    print_line(f"listening on {url} (data: {os.path.abspath(settings.data_dir)})")
    if hints:
        print_line(HINTS.format(url=url, program=program()))
    server.run(sockets=[sock])
    return app.lifespan.failure


def _socket(settings: Settings, limits: Limits) -> socket.socket:
    try:
        return listen(settings.host, settings.port, limits.stall)
    except OSError as error:
        where = f"{settings.host}:{settings.port}"
        raise OSError(f"cannot listen on {where}: {error.strerror}") from error


def program() -> str:
    """The command that started this program, to print it in hints."""
    called = sys.argv[0]
    return "topics" if called.endswith(".py") else os.path.relpath(called)


def print_line(line: str) -> None:
    print(line, flush=True)
