"""Child processes that end with their test, and waiting until threads wait."""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

LIMIT = 300.0
"""Seconds after which a child process is killed."""


@contextlib.contextmanager
def child(command: Sequence[Any], **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A process whose output is read as text. It is killed at the end of the block, and after
    `LIMIT`: a read of its output always ends.
    """
    options = {"stdout": subprocess.PIPE, "text": True, **options}
    with subprocess.Popen(list(map(str, command)), **options) as process:
        limit = threading.Timer(LIMIT, process.kill)
        limit.daemon = True
        limit.start()
        try:
            yield process
        finally:
            limit.cancel()
            process.kill()


def all_threads_sleep(*pids: int) -> bool:
    """Whether every thread of these processes sleeps, except for the calling one (Linux)."""
    caller = str(threading.get_native_id())
    for stat in [s for pid in pids for s in Path(f"/proc/{pid}/task").glob("*/stat")]:
        # A thread that has ended has no file.
        with contextlib.suppress(OSError):
            state = stat.read_text().rpartition(") ")[2][:1]
            if state != "S" and stat.parent.name != caller:
                return False
    return True


def looks_until_all_wait(*pids: int) -> Iterator[None]:
    """Looks until all other threads of this process, and all threads of these processes, wait for
    something: several looks in a row find all of them asleep. Pauses are the caller's.

    What has been requested of them is then under way. The verdict of a test must not depend on it:
    a thread that another one wakes between two looks escapes them, and after ten seconds they end.
    """
    deadline = time.monotonic() + 10
    asleep = 0
    while asleep < 3 and time.monotonic() < deadline:
        yield
        asleep = asleep + 1 if all_threads_sleep(os.getpid(), *pids) else 0


def until_all_wait(*pids: int) -> None:
    """Waits until what was begun waits for something; see `looks_until_all_wait`."""
    for _ in looks_until_all_wait(*pids):
        time.sleep(0.005)
