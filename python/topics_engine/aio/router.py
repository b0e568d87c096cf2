"""The handle of a router."""

from __future__ import annotations

from ..client import router as plain
from .handle import AsyncHandle, async_method


class Router(AsyncHandle[plain.Router]):
    """A router by name. It copies records from its source to its destination."""

    __slots__ = ()

    @property
    def name(self) -> str:
        """The name of the router."""
        return self._sync.name

    state = async_method(plain.Router.state)
    drop = async_method(plain.Router.drop)
