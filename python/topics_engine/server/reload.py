"""Reload on SIGHUP: API keys, the certificate and the log level.

Everything is read before anything is changed, so a bad file leaves the server unchanged.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable
from typing import Any

from ..asgi import App
from ..asgi.keys import Keys
from ..asgi.settings import Settings
from ..errors import InvalidRequest
from .tls import Certificate, TlsRefused, context

log = logging.getLogger("topics_engine.server")


def set_level(level: str) -> None:
    """Sets the lowest level of log messages."""
    logging.getLogger().setLevel(level.upper())


class EarlySignal:
    """The handler of a signal that comes before the loop runs."""

    def __init__(self) -> None:
        self.received = False

    def __call__(self, sig: int, frame: Any) -> None:
        self.received = True


class Reloader:
    """Reloads the settings of a running server.

    `read_settings` returns the current settings. Keys from the environment were removed from it at
    the start, so `fixed_keys` has them; they cannot change. `early` knows whether a SIGHUP came
    before the loop runs.
    """

    def __init__(
        self,
        app: App,
        certificate: Certificate | None,
        read_settings: Callable[[], Settings],
        *,
        fixed_keys: str,
        early: EarlySignal | None = None,
    ) -> None:
        self._app = app
        self._certificate = certificate
        self._read_settings = read_settings
        self._fixed = Keys.parse(fixed_keys)
        self._task: asyncio.Task[None] | None = None
        self._early = early

    def install(self) -> None:
        """Makes SIGHUP reload, on the running loop."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._soon)
        if self._early is not None and self._early.received:
            self._soon()

    def _soon(self) -> None:
        # Signals during a pending reload are merged.
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._when_open())

    async def _when_open(self) -> None:
        # Before the engine is open, the core does not have the first keys yet.
        while self._app.lifespan.phase == "opening":
            await asyncio.sleep(0.02)
        if self._app.lifespan.phase == "ready":
            self.reload()

    def reload(self) -> None:
        """Reads everything, then applies the changes."""
        try:
            settings = self._read_settings()
            text = "" if self._fixed else settings.api_keys
            keys = Keys.parse(text, settings.api_keys_file, self._fixed)
            certificate = context(settings.tls_cert, settings.tls_key)
            if (certificate is None) != (self._certificate is None):
                raise InvalidRequest(
                    "tls_cert cannot be set or unset while the server runs: restart it"
                )
            done = [self._renew_keys(keys)]
        except (InvalidRequest, TlsRefused, OSError) as error:
            log.error("cannot reload, so nothing was changed: %s", error)
            return
        if self._certificate is not None and certificate is not None:
            self._certificate.renew(certificate)
            done.append(f"the certificate of {settings.tls_cert}")
        set_level(settings.log_level)
        done.append(f"log level {settings.log_level}")
        log.warning("reloaded: %s", ", ".join(done))

    def _renew_keys(self, keys: Keys) -> str:
        if not keys and not self._app.has_keys:
            return "no keys"
        if not keys:
            raise InvalidRequest(
                "no API keys are left: a server that was started with keys needs at least one"
            )
        renewal = self._app.renew_keys(keys)
        return (
            f"{len(keys)} keys ({renewal.new} new, {renewal.changed} changed, "
            f"{renewal.revoked} revoked)"
        )
