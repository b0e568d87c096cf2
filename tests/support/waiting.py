"""Waiting for asynchronous events."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

DEADLINE = 60.0
"""Seconds after which a condition that did not become true is a failure of the product, on a slow
machine too."""


def until(check: Callable[[], T], seconds: float = DEADLINE) -> T:
    """Waits until `check` returns a true value, and returns it."""
    deadline = time.monotonic() + seconds
    while not (found := check()):
        assert time.monotonic() < deadline, "the condition did not become true"
        time.sleep(0.005)
    return found


def until_received(sock: socket.socket, seconds: float = DEADLINE) -> None:
    """Waits until the process at the other end of a loopback connection has read all that was sent,
    or has closed its end (Linux).
    """
    ends = sock.getsockname()[1], sock.getpeername()[1]
    until(lambda: not _queued(*ends), seconds)


def _queued(mine: int, other: int) -> int:
    """Bytes of a connection that are in the send queue of one end or the receive queue of the
    other."""
    found = 0
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, remote, _, queues = line.split()[:5]
        ports = int(local.split(":")[1], 16), int(remote.split(":")[1], 16)
        sent, received = (int(size, 16) for size in queues.split(":"))
        if ports == (mine, other):
            found += sent
        elif ports == (other, mine):
            found += received
    return found
