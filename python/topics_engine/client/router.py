"""A router's handle."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from .values import RouterInfo

if TYPE_CHECKING:
    from .backend import Backend


class Router:
    """A router by name; thread-safe. It copies what is written to its source, as it is written."""

    __slots__ = ("_backend", "name")

    def __init__(self, backend: Backend, name: str) -> None:
        self._backend = backend
        self.name = name

    def state(self) -> RouterInfo:
        """What it is, and how far."""
        return RouterInfo.from_fields(json.loads(self._backend.router(self.name)))

    def drop(self) -> bool:
        """Deletes it; what it copied stays. False when there was none."""
        return self._backend.delete_router(self.name)

    def __repr__(self) -> str:
        return f"<Router {self.name!r}>"
