"""uvicorn's protocol with streams that are written natively.

The application answers a request for a stream as ever; once the head is sent, the events go from
the engine to the transport without a task of the loop for each.
"""

from __future__ import annotations

from collections.abc import Callable

from .. import _core
from ..asgi.streaming import PUMP
from .protocol import BoundedProtocol


class PumpedProtocol(BoundedProtocol):
    """Offers the application to write its streams."""

    _pump: _core.StreamWriter | None = None

    def _extensions(self) -> dict[str, dict[object, object]]:
        return {**super()._extensions(), PUMP: {"begin": self._begin}}

    def _begin(
        self, http: _core.Http, token: int, ended: Callable[[bool], object]
    ) -> _core.StreamWriter:
        """The pump of the stream whose head has been sent."""
        pump = self._pump = _core.StreamWriter(http, token, self.transport, ended)
        if self.flow.write_paused:
            pump.pause()
        pump.begin()
        return pump

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._pump is not None:
            self._pump.pause()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._pump is not None:
            self._pump.resume()
