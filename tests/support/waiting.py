"""Waiting for asynchronous events."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def until(check: Callable[[], T], seconds: float = 20) -> T:
    """Waits until `check` returns a true value, and returns it."""
    deadline = time.monotonic() + seconds
    while not (found := check()):
        assert time.monotonic() < deadline, "the condition did not become true"
        time.sleep(0.005)
    return found
