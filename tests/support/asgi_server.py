"""The application under ASGI servers of others, and mounted in frameworks."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path

from .http_client import once
from .ports import free_port
from .waiting import until

APP = "topics_engine.asgi:app"

COMMANDS: dict[str, str] = {
    "uvicorn": "uvicorn --port {port} --log-level warning {app}",
    "hypercorn": "hypercorn --bind 127.0.0.1:{port} --graceful-timeout 20 {app}",
    "granian": "granian --interface asgi --port {port} --log-level warning {app}",
    "daphne": "daphne --port {port} --verbosity 0 {app}",
    "uvicorn --lifespan off": "uvicorn --lifespan off --port {port} --log-level warning {app}",
}
"""How each server is started."""

SERVERS = ("uvicorn", "hypercorn", "granian", "daphne")

MOUNTED = {
    "starlette": """
        from starlette.applications import Starlette
        from starlette.routing import Mount

        app = Starlette(routes=[Mount("/topics", topics)], lifespan=lifespan)
    """,
    "fastapi": """
        from fastapi import FastAPI

        app = FastAPI(lifespan=lifespan)
        app.mount("/topics", topics)
    """,
    "bare": """
        from starlette.applications import Starlette
        from starlette.routing import Mount

        app = Starlette(routes=[Mount("/topics", topics)])
    """,
}
"""Applications that mount this one, behind `MOUNTING`: the recipes of the documentation, and one
without a lifespan."""

MOUNTING = """
    from contextlib import asynccontextmanager
    from topics_engine.asgi import create_app

    topics = create_app()

    @asynccontextmanager
    async def lifespan(_):
        async with topics.running():
            yield
"""


class AsgiServer:
    """A server of others in a process of its own, with the application or one that mounts it."""

    def __init__(
        self,
        folder: Path,
        server: str,
        *,
        mounted: str = "",
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.server = server
        self.name = mounted or server
        self.base = "/topics" if mounted else ""
        self.port = free_port()
        self.log = folder / "server.log"
        app = APP
        if mounted:
            program = textwrap.dedent(MOUNTING) + textwrap.dedent(MOUNTED[mounted])
            (folder / "mounting.py").write_text(program)
            app = "mounting:app"
        command = COMMANDS[server].format(port=self.port, app=app).split()
        given = {"TOPICS_DATA_DIR": str(folder / "data"), "PYTHONPATH": str(folder)}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", *command],
                cwd=folder,
                env={**os.environ, **given, **(env or {})},
                stdout=log,
                stderr=subprocess.STDOUT,
                # hypercorn and granian have workers, which end with their group.
                start_new_session=True,
            )

    def wait_listening(self) -> None:
        """Waits until the port is open; asks nothing of the application."""

        def listens() -> bool:
            assert self.process.poll() is None, self.log.read_text()
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port)):
                return True
            return False

        until(listens, 60)

    def wait_ready(self) -> None:
        """Waits until the engine is open."""
        self.wait_listening()
        until(lambda: once(self.port, "GET", f"{self.base}/readyz").status == 200, 60)

    def stop(self, seconds: float = 30) -> int:
        """SIGTERM; the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(seconds)

    def ensure_dead(self) -> None:
        """Kills what is left of the process and its workers."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@contextlib.contextmanager
def serving(
    folder: Path, server: str, *, mounted: str = "", env: Mapping[str, str] | None = None
) -> Iterator[AsgiServer]:
    """A server that is listening."""
    made = AsgiServer(folder, server, mounted=mounted, env=env)
    try:
        made.wait_listening()
        yield made
    finally:
        made.ensure_dead()
