"""TLS of the server: certificates, and the event loop with TLS timeouts."""

from __future__ import annotations

import ssl
from functools import partial
from typing import Any

import uvicorn
import uvloop

from ..asgi.streaming import SCAN_STALL_FACTOR
from .limits import Limits


class TlsRefused(ValueError):
    """The certificate or its key cannot be used."""


def context(certificate: str, key: str) -> ssl.SSLContext | None:
    """The TLS context of a certificate; `None` without one."""
    if not certificate:
        if key:
            raise TlsRefused("a TLS key needs a certificate: set --tls-cert (TOPICS_TLS_CERT) too")
        return None
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    made.set_alpn_protocols(["h2", "http/1.1"])
    try:
        # An encrypted key fails, instead of prompting for its password.
        made.load_cert_chain(certificate, key or None, password=lambda: "")
    except (OSError, ValueError) as error:
        of = f"{certificate} and {key}" if key else certificate
        raise TlsRefused(f"{of}: cannot load a certificate and its key: {error}") from None
    return made


class Certificate:
    """The certificate for new connections, which can be renewed while the server listens."""

    def __init__(self, shown: ssl.SSLContext, listener: ssl.SSLContext) -> None:
        self._shown = shown
        self.listener = listener
        listener.sni_callback = self._choose

    @classmethod
    def load(cls, certificate: str, key: str) -> Certificate | None:
        """Loads these files; `None` without a certificate."""
        shown, listener = context(certificate, key), context(certificate, key)
        return None if shown is None or listener is None else cls(shown, listener)

    def renew(self, shown: ssl.SSLContext) -> None:
        """Uses another certificate from the next connection on."""
        self._shown = shown

    def _choose(self, connection: ssl.SSLObject, _name: str | None, _: ssl.SSLContext) -> None:
        # OpenSSL calls this in every handshake, also without a server name.
        connection.context = self._shown


class Loop(uvloop.Loop):
    """An event loop that applies the connection limits to TLS."""

    def __init__(self, limits: Limits) -> None:
        super().__init__()
        self._limits = limits

    async def create_server(self, *args: Any, **kwargs: Any) -> Any:
        """Creates a server, with these limits over TLS."""
        if kwargs.get("ssl") is not None:
            kwargs["ssl_handshake_timeout"] = self._limits.header
            # The shutdown starts with all pending bytes. `WriteTimeout` ends it earlier for a
            # client that reads nothing, or sends no close_notify.
            kwargs["ssl_shutdown_timeout"] = self._limits.stall * SCAN_STALL_FACTOR
        return await super().create_server(*args, **kwargs)


class Config(uvicorn.Config):
    """uvicorn's configuration with an existing TLS context."""

    def __init__(
        self, *args: Any, tls: ssl.SSLContext | None, limits: Limits, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self._tls = tls
        self._limits = limits

    def load(self) -> None:
        """Loads the configuration, and sets the TLS context."""
        super().load()
        self.ssl = self._tls

    def get_loop_factory(self) -> Any:
        """The factory of the event loop."""
        return partial(Loop, self._limits)
