"""A real `topics serve` in a separate process."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

from topics_engine import testing

# Small limits, so that a test can reach each of them.
LIMITS = {
    "TOPICS_MAX_BATCH_RECORDS": "1000",
    "TOPICS_MAX_RECORD_BYTES": "10000",
    "TOPICS_MAX_BODY_BYTES": "200000",
    "TOPICS_MAX_TOPICS": "5000",
}


class Server(testing.Server):
    """Additional operations of tests and the demo on a server."""

    def freeze(self) -> None:
        """SIGSTOP: stops the process until it is killed."""
        os.kill(self.pid, signal.SIGSTOP)

    def memory(self) -> tuple[int, int]:
        """Resident bytes of the process: total, and the anonymous part (Linux)."""
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


def running(
    directory: Path, env: dict[str, str] | None = None, kind: type[Server] = Server
) -> Iterator[Server]:
    """A server on a directory; must end cleanly at the end of the block."""
    with kind(directory, env=env) as live:
        yield live
        assert live.stop() == 0


opened = contextlib.contextmanager(running)
"""The same as a block."""


UNFINISHED = shutil.ignore_patterns("*.tmp")
"""For `shutil.copytree`: what a running engine may rename while its directory is copied."""


def bytes_on_disk(folder: Path) -> int:
    """Allocated bytes of every file below `folder`; files may be removed concurrently."""
    total = 0
    for inside, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                total += os.stat(os.path.join(inside, name)).st_blocks * 512
    return total
