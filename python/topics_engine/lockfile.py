"""The lock of a data directory, as other processes see it."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import NamedTuple

NAME = ".topics.lock"


class Holder(NamedTuple):
    """The process that has a directory open."""

    pid: int
    url: str | None
    """Where it serves the directory, if it does."""


def holder_of(data_dir: str | os.PathLike[str]) -> Holder | None:
    """The process that has a directory open; `None` if no process has.

    An unlocked file names a process that has ended.
    """
    try:
        with (Path(data_dir) / NAME).open() as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                pid, url, *_ = [*lock.read().splitlines(), "", ""]
                return Holder(int(pid) if pid.isdigit() else 0, url or None)
    except FileNotFoundError:
        pass
    return None
