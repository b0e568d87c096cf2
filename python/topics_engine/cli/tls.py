"""TLS of the server: what a certificate's file holds, and which protocols are offered."""

from __future__ import annotations

import ssl
from typing import Any

import uvicorn
import uvloop

# How long a closed connection waits for its client to say goodbye, as TLS asks for.
GOODBYE_SECONDS = 1.0


class TlsRefused(ValueError):
    """The certificate or its key cannot be used."""


def context(certificate: str, key: str) -> ssl.SSLContext | None:
    """The context of a server with this certificate; `None` without one."""
    if not certificate:
        if key:
            raise TlsRefused("a key without a certificate: give --tls-cert (TOPICS_TLS_CERT) too")
        return None
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    made.set_alpn_protocols(["h2", "http/1.1"])
    try:
        # Never a question on the terminal.
        made.load_cert_chain(certificate, key or None, password=lambda: "")
    except (OSError, ValueError) as error:
        of = f"{certificate} and {key}" if key else certificate
        raise TlsRefused(f"{of}: no certificate with its key: {error}") from None
    return made


class Loop(uvloop.Loop):
    """A loop whose clients of TLS cannot hold up a shutdown by their silence."""

    async def create_server(self, *args: Any, **kwargs: Any) -> Any:
        """The same as ever, with a shorter goodbye."""
        if kwargs.get("ssl") is not None:
            kwargs["ssl_shutdown_timeout"] = GOODBYE_SECONDS
        return await super().create_server(*args, **kwargs)


class Config(uvicorn.Config):
    """uvicorn's configuration, with a context of TLS that is made already."""

    def __init__(self, *args: Any, tls: ssl.SSLContext | None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._tls = tls

    def load(self) -> None:
        """Loads what is loaded once."""
        super().load()
        self.ssl = self._tls

    def get_loop_factory(self) -> Any:
        """What makes the event loop."""
        return Loop
