"""The server of the demo: a real `topics serve` in a process of its own."""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Self

READY_WITHIN = 60.0


class Server:
    """Starts, kills and restarts one server on one directory and one port."""

    program: tuple[str, ...] = ("-m", "topics_engine.cli")

    def __init__(self, data_dir: Path, port: int = 0, env: dict[str, str] | None = None) -> None:
        self.data_dir = data_dir
        self.port = port
        self._env = dict(os.environ, **(env or {}))
        self._process: subprocess.Popen[str] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        """Started. Leaves no process behind, whatever happens in the block."""
        try:
            self.start()
        except BaseException:
            self.ensure_dead()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.ensure_dead()

    def start(self) -> float:
        """Starts the server and waits until it is ready; the seconds that took."""
        started = time.monotonic()
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
            raise RuntimeError(f"the server did not start: {line!r}, exit {self.wait()}")
        self.port = int(line.split("listening on http", 1)[1].split()[0].rsplit(":", 1)[1])
        while not self._ready():
            if self._process.poll() is not None:
                raise RuntimeError(f"the server ended with {self.wait()}")
            if time.monotonic() - started > READY_WITHIN:
                raise RuntimeError(f"the server was not ready within {READY_WITHIN:g} s")
            time.sleep(0.005)
        return time.monotonic() - started

    def _connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)

    def _ready(self) -> bool:
        connection = self._connect()
        try:
            connection.request("GET", "/readyz")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def freeze(self) -> None:
        """SIGSTOP: the process is held where it is, until it is killed."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def kill(self) -> None:
        """SIGKILL: nothing of the process runs after this."""
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self.wait()

    def stop(self) -> int:
        """SIGTERM; the exit code of the orderly shutdown."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        return self.wait()

    def wait(self) -> int:
        """Waits for the end that somebody has asked for; the exit code."""
        assert self._process is not None
        code = self._process.wait(timeout=READY_WITHIN)
        if self._process.stdout is not None:
            self._process.stdout.close()
        return code

    def ensure_dead(self) -> None:
        """Leaves no process behind, whatever happened."""
        if self._process is not None and self._process.poll() is None:
            self.kill()

    def memory(self) -> tuple[int, int]:
        """Resident bytes of the process: all, and the anonymous part (Linux)."""
        try:
            status = Path(f"/proc/{self.pid}/status").read_text()
        except OSError:
            return 0, 0
        held = {
            line.split(":")[0]: int(line.split()[1]) << 10
            for line in status.splitlines()
            if line.startswith(("VmRSS", "RssAnon"))
        }
        return held.get("VmRSS", 0), held.get("RssAnon", 0)


def bytes_on_disk(folder: Path) -> int:
    """Allocated bytes of every file below `folder`, of which some may go meanwhile."""
    total = 0
    for inside, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                total += os.stat(os.path.join(inside, name)).st_blocks * 512
    return total
