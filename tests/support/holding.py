"""A server whose syncs can be held."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

from support.server import Server
from support.waiting import DEADLINE

QUIET = {
    "TOPICS_IO_BACKEND": "posix",
    "TOPICS_WAL_FILE_MIN": str(64 << 20),
    "TOPICS_CHECKPOINT_INTERVAL_MS": "3600000",
}
"""Settings with which nothing waits for a sync but what clients do: no log file is full."""


class Holding(Server):
    """A server whose syncs can be held."""

    program = (str(Path(__file__).with_name("hold_syncs.py")),)

    def hold(self) -> None:
        """From now on no sync ends."""
        os.kill(self.pid, signal.SIGUSR1)
        self._hear("syncs are held")

    def until_held(self) -> None:
        """Until somebody waits for a sync."""
        self._hear("a sync is held")

    def release(self) -> None:
        os.kill(self.pid, signal.SIGUSR2)

    def _hear(self, line: str) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        # A process that is killed closes its pipe, which ends the wait.
        watchdog = threading.Timer(DEADLINE, self._process.kill)
        watchdog.start()
        try:
            while (said := self._process.stdout.readline()).strip() != line:
                assert said, "the server has ended, or says nothing"
        finally:
            watchdog.cancel()
