"""The handle of a router."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import arguments
from .closing import Handle
from .values import RouterInfo

if TYPE_CHECKING:
    from .backend import Backend


class Router(Handle):
    """A router by name. Thread-safe. It copies records from its source to its destination."""

    __slots__ = ("_backend", "name")

    def __init__(self, backend: Backend, name: str) -> None:
        self._backend = backend
        self.name = arguments.router_name(name)

    def state(self) -> RouterInfo:
        """Returns the router's options and its progress.

        Raises:
            NotFound: the router does not exist.
        """
        return RouterInfo.from_fields(self._backend.router(self.name))

    def drop(self) -> bool:
        """Deletes the router; copied records stay. Returns False if it does not exist."""
        return self._backend.delete_router(self.name)

    def __repr__(self) -> str:
        return f"<Router {self.name!r}>"
