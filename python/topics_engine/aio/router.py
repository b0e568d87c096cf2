"""A router's handle."""

from __future__ import annotations

from ..client import router as plain
from .twin import Twin, twin


class Router(Twin[plain.Router]):
    """A router by name. It copies what is written to its source, as it is written."""

    __slots__ = ()

    @property
    def name(self) -> str:
        return self._sync.name

    state = twin(plain.Router.state)
    drop = twin(plain.Router.drop)
