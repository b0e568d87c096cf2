"""Helpers for tests of programs that use topics_engine.

The module is a pytest plugin. Enable it in the top-level `conftest.py`:

    pytest_plugins = ["topics_engine.testing"]

It gives two fixtures:

    topics_db       an embedded engine in a temporary directory, one per test
    topics_server   a running `topics serve`, one per test session

`Server` itself works without pytest.
"""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import sys
import time
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Self, Unpack

from .errors import InvalidRequest
from .names import nearest
from .options import SERVER
from .settings import engine_settings, variable

if TYPE_CHECKING:
    from .client import Database
    from .options import ServerSettings

READY_SECONDS = 60.0
"""How long `Server` waits until the process answers, or has ended."""


class Server:
    """`topics serve` in a process of its own, on one directory and one port of 127.0.0.1.

    It has the settings of these arguments alone: not those of the `TOPICS_*` variables of this
    process, and not those of a `topics.toml` in its working directory.

    Args:
        data_dir: the data directory; it is created if it does not exist.
        port: the port to listen on; 0 picks a free one, which a restart finds free, too (on Linux).
        env: environment variables of the process, over those of this one.
        settings: settings of the server by name, for example `max_topics=10`.

    Raises:
        InvalidRequest: a setting is unknown.

    Example:
        ```python
        with Server(tmp_path / "data", api_keys="secret:rwa") as server:
            db = te.connect(server.url, "secret")
        ```
    """

    program: tuple[str, ...] = ("-m", "topics_engine.cli")

    def __init__(
        self,
        data_dir: str | os.PathLike[str],
        port: int = 0,
        env: Mapping[str, str] | None = None,
        **settings: Unpack[ServerSettings],
    ) -> None:
        self.data_dir = Path(data_dir)
        self.port = port
        known = {*engine_settings(), *SERVER}
        for name in settings:
            if name not in known:
                message = f"unknown setting `{name}`{nearest(name, known)}"
                raise InvalidRequest(message, detail={"field": name})
        named = {variable(name): str(value) for name, value in settings.items()}
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("TOPICS_")}
        self._env = {**inherited, "TOPICS_CONFIG": os.devnull, **(env or {}), **named}
        self._process: subprocess.Popen[str] | None = None

    @property
    def pid(self) -> int:
        """The process id. Raises `RuntimeError` before the first `start`."""
        return self._started().pid

    @property
    def url(self) -> str:
        """Where the server listens: the argument of `te.connect`."""
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.ensure_dead()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.ensure_dead()

    def start(self) -> float:
        """Starts the process and waits until it is ready.

        Returns:
            The seconds that this took.

        Raises:
            RuntimeError: the process ended, or was not ready within 60 s.
        """
        started = time.monotonic()
        if self.port == 0 and sys.platform == "linux":
            self.port = self._reserve_port()
        command = [sys.executable, *self.program, "serve", "--port", str(self.port)]
        self._process = subprocess.Popen(
            [*command, "--data-dir", str(self.data_dir)],
            stdout=subprocess.PIPE,
            text=True,
            env=self._env,
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if "listening on http" not in line:
            raise RuntimeError(f"the server did not start: {line!r}, exit code {self.wait()}")
        self.port = int(line.split("listening on http", 1)[1].split()[0].rsplit(":", 1)[1])
        while not self._is_ready():
            if self._process.poll() is not None:
                raise RuntimeError(f"the server ended with exit code {self.wait()}")
            if time.monotonic() - started > READY_SECONDS:
                raise RuntimeError(f"the server was not ready within {READY_SECONDS:g} s")
            time.sleep(0.005)
        return time.monotonic() - started

    def _reserve_port(self) -> int:
        """Picks a port that no other program is given while this object lives.

        A socket that is bound and does not listen leaves the port to a server with SO_REUSEADDR.
        Linux gives it neither to connections nor to sockets that ask for any port. The BSDs would
        refuse the server.
        """
        with socket.socket() as reserved:
            reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            reserved.bind(("127.0.0.1", 0))
            port: int = reserved.getsockname()[1]
            weakref.finalize(self, os.close, reserved.detach())
        return port

    def _started(self) -> subprocess.Popen[str]:
        if self._process is None:
            raise RuntimeError("the server was not started: call start() first")
        return self._process

    def _connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)

    def _is_ready(self) -> bool:
        connection = self._connect()
        try:
            connection.request("GET", "/readyz")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def stop(self) -> int:
        """Sends SIGTERM and waits for the orderly shutdown.

        Returns:
            The exit code: 0 when the shutdown was complete.
        """
        self._started().send_signal(signal.SIGTERM)
        return self.wait()

    def kill(self) -> None:
        """Sends SIGKILL: the process ends without a shutdown. `start` recovers the directory."""
        self._started().send_signal(signal.SIGKILL)
        self.wait()

    def wait(self) -> int:
        """Waits until the process has ended.

        Returns:
            The exit code.
        """
        process = self._started()
        code = process.wait(timeout=READY_SECONDS)
        if process.stdout is not None:
            process.stdout.close()
        return code

    def ensure_dead(self) -> None:
        """Kills the process if it runs."""
        if self._process is not None and self._process.poll() is None:
            self.kill()


try:
    import pytest
except ModuleNotFoundError:
    # Without pytest there are no fixtures.
    pass
else:

    @pytest.fixture
    def topics_db(tmp_path: Path) -> Iterator[Database]:
        """An embedded engine in a temporary directory."""
        from .client import open_database

        with open_database(tmp_path / "topics-data") as db:
            yield db

    @pytest.fixture(scope="session")
    def topics_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
        """A running server; tests of a session share it, so each uses topic names of its own."""
        with Server(tmp_path_factory.mktemp("topics") / "data") as server:
            yield server
            if (code := server.stop()) != 0:
                raise RuntimeError(f"the server ended with exit code {code}")
