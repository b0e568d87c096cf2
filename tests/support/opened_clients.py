"""The clients that are open, so that a fixture closes those of a test whatever its outcome."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator
from typing import Any, TypeVar

T = TypeVar("T")

_open: weakref.WeakSet[Any] = weakref.WeakSet()


def register(client: T) -> T:
    """Remembers an object with `close()`, which may be called again after it was closed."""
    _open.add(client)
    return client


@contextlib.contextmanager
def closed_at_end() -> Iterator[None]:
    """Closes the clients that were opened within the block."""
    before = set(map(id, _open))
    try:
        yield
    finally:
        for client in list(_open):
            if id(client) not in before:
                with contextlib.suppress(Exception):
                    client.close()
