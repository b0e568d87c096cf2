"""Programs that a test starts, and reads from while they run."""

from __future__ import annotations

import contextlib
import subprocess
import threading
from collections.abc import Iterator
from typing import Any

DEADLINE = 120
"""Seconds after which a program that a test waits for is killed."""


@contextlib.contextmanager
def program(*command: str, **how: Any) -> Iterator[subprocess.Popen[str]]:
    """A program whose output is a pipe. It is killed at the end of the block, or at the deadline: a
    read from it then returns what there is.
    """
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **how) as process:
        timer = threading.Timer(DEADLINE, process.kill)
        timer.start()
        try:
            yield process
        finally:
            timer.cancel()
            process.kill()
