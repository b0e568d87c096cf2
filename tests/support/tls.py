"""A server with a certificate, and its clients."""

from __future__ import annotations

import http.client
import ssl
import subprocess
from pathlib import Path

from support.server import Server


class TlsPort(int):
    """A port whose clients start with TLS, and speak HTTP/1.1."""


def trust(*protocols: str, most: ssl.TLSVersion | None = None) -> ssl.SSLContext:
    """A client context that offers these protocols and accepts any certificate."""
    # Without the certificates of the machine, which take long to load.
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    made.check_hostname = False
    made.verify_mode = ssl.CERT_NONE
    if protocols:
        made.set_alpn_protocols(list(protocols))
    if most is not None:
        made.maximum_version = most
    return made


def certificate(folder: Path) -> dict[str, str]:
    """A new certificate and its key, as settings of a server."""
    paths = str(folder / "cert.pem"), str(folder / "key.pem")
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost".split()
    subprocess.run(
        [*command, "-out", paths[0], "-keyout", paths[1]], check=True, capture_output=True
    )
    return {"TOPICS_TLS_CERT": paths[0], "TOPICS_TLS_KEY": paths[1]}


class TlsServer(Server):
    """A server with its own certificate."""

    def start(self) -> float:
        took = super().start()
        self.port = TlsPort(self.port)
        return took

    def _connect(self) -> http.client.HTTPConnection:
        return secure(self.port, 5)


def secure(port: int, timeout: float) -> http.client.HTTPSConnection:
    """A connection that speaks HTTP/1.1 over TLS."""
    return http.client.HTTPSConnection("127.0.0.1", int(port), timeout=timeout, context=trust())


def hello(*protocols: str) -> bytes:
    """The first message of a client."""
    received, sent = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = trust(*protocols).wrap_bio(received, sent)
    try:
        client.do_handshake()
    except ssl.SSLWantReadError:
        return sent.read()
    raise AssertionError("a handshake without a server")
