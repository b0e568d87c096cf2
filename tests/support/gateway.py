"""A real S3 server: versitygw, over a folder. It is built on demand, see `.ci/go-tool`."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from .gate import GATE
from .ports import free_port
from .waiting import until

ROOT = Path(__file__).resolve().parents[2]
KEY = "topics-test"
BUCKET = "bucket"
CREDENTIALS = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": KEY}


def go_tool(name: str) -> str:
    """The path of a tool. The test is skipped where there is none; at the release gate it fails."""
    if path := os.environ.get(f"TOPICS_{name.upper()}"):
        return path
    built = subprocess.run([ROOT / ".ci/go-tool", name], capture_output=True, text=True)
    if built.returncode:
        why = built.stderr.strip().splitlines()[-1]
        if GATE == "release":
            pytest.fail(why)
        pytest.skip(why)
    return built.stdout.strip()


class Gateway:
    """A running gateway with one bucket, until the end of the block."""

    def __init__(self, folder: Path) -> None:
        self._binary = go_tool("versitygw")
        self._folder = folder
        (folder / BUCKET).mkdir(parents=True)
        self.port = free_port()
        self._start()

    def _start(self) -> None:
        command = [self._binary, "--access", KEY, "--secret", KEY]
        self._process = subprocess.Popen(
            [*command, "--port", f"127.0.0.1:{self.port}", "posix", self._folder],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        until(self._listens, 30)

    def _listens(self) -> bool:
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", self.port)) == 0

    def kill(self) -> None:
        """SIGKILL."""
        self._process.kill()
        self._process.wait()

    def restart(self) -> None:
        """A new process on the same folder and port."""
        self.kill()
        self._start()

    @contextlib.contextmanager
    def down(self) -> Iterator[None]:
        """Killed in the block, and started again after it."""
        self.kill()
        yield
        self._start()

    def arriving(self) -> int:
        """The bytes of the largest object that is being uploaded: its file has no name yet."""
        sizes = [0]
        top = str(self._folder / BUCKET)
        for descriptor in Path(f"/proc/{self._process.pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                if os.readlink(descriptor).startswith(top) and descriptor.is_file():
                    sizes.append(descriptor.stat().st_blocks * 512)
        return max(sizes)

    def url(self, prefix: str, port: int | None = None) -> str:
        """The URL of a prefix, through another port if one is given."""
        return f"s3://{BUCKET}/{prefix}?endpoint=http://127.0.0.1:{port or self.port}"

    def files(self, prefix: str) -> Mapping[str, Path]:
        """The objects below a prefix, by key."""
        top = self._folder / BUCKET / prefix
        return {str(p.relative_to(top)): p for p in top.rglob("*") if p.is_file()}

    def __enter__(self) -> Gateway:
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()
