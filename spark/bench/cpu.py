"""The processor time of processes (Linux)."""

from __future__ import annotations

import os
from collections import defaultdict
from pathlib import Path


def _fields(pid: int | str) -> list[str]:
    """The fields of `/proc/PID/stat` behind the name, which may contain anything."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def cpu_seconds(pid: int) -> float:
    """User and system time of a process."""
    return sum(map(int, _fields(pid)[11:13])) / os.sysconf("SC_CLK_TCK")


def descendants(pid: int) -> list[int]:
    """The living children of a process, and theirs, without itself."""
    children = defaultdict(list)
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                parent = int(_fields(folder.name)[1])
            except OSError:
                continue
            children[parent].append(int(folder.name))
    found, left = [], [pid]
    while left:
        below = children[left.pop()]
        found += below
        left += below
    return found
