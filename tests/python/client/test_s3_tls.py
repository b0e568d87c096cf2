"""TLS to an object store, with and without CA certificates. No request leaves the machine."""

from __future__ import annotations

import json
import os
import ssl
import sys
import textwrap
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from support.processes import child
from support.tls import certificate

KEYS = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x"}
NO_KEYS = {"AWS_METADATA_ENDPOINT": "http://127.0.0.1:9"}
"""Nothing listens there."""

PROBE = """
    import json, sys
    from topics_engine import _core
    found = json.loads(_core.probe_remote(sys.argv[1], 0))
    print(json.dumps([row["detail"] for row in found["features"]]))
"""


class Forbidden(BaseHTTPRequestHandler):
    """Refuses every request."""

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(403)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def server(tmp_path: Path) -> Iterator[int]:
    """The port of a server with TLS and a certificate that only it vouches for."""
    files = certificate(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files["TOPICS_TLS_CERT"], files["TOPICS_TLS_KEY"])
    listening = ThreadingHTTPServer(("127.0.0.1", 0), Forbidden)
    listening.socket = context.wrap_socket(listening.socket, server_side=True)
    thread = threading.Thread(target=listening.serve_forever)
    thread.start()
    yield listening.server_port
    listening.shutdown()
    thread.join()
    listening.server_close()


def probed(url: str, roots: Path, given: dict[str, str], tmp_path: Path) -> list[str]:
    """The details of a probe by a process whose machine has these CA certificates only."""
    (tmp_path / "none").mkdir(exist_ok=True)
    env = {k: v for k, v in os.environ.items() if not k.startswith("AWS_")} | given
    env |= {"SSL_CERT_FILE": str(roots), "SSL_CERT_DIR": str(tmp_path / "none")}
    command = [sys.executable, "-c", textwrap.dedent(PROBE), url]
    with child(command, env=env) as process:
        out, err = process.communicate()
        assert process.returncode == 0, err
    details: list[str] = json.loads(out)
    return details


def test_a_machine_without_ca_certificates_trusts_the_public_ones(
    server: int, tmp_path: Path
) -> None:
    """The store opens, and a server with a certificate of its own is not trusted."""
    (tmp_path / "empty.pem").touch()
    url = f"s3://b/p?endpoint=https://localhost:{server}"
    details = probed(url, tmp_path / "empty.pem", KEYS, tmp_path)
    assert "invalid peer certificate" in details[0], details


@pytest.mark.parametrize("given", [KEYS, NO_KEYS], ids=["keys", "no keys"])
def test_http_reads_no_ca_certificates(tmp_path: Path, given: dict[str, str]) -> None:
    """The file of the CA certificates is a pipe: its reader would wait until it is killed."""
    os.mkfifo(tmp_path / "roots.pem")
    details = probed(
        "s3://b/p?endpoint=http://127.0.0.1:9", tmp_path / "roots.pem", given, tmp_path
    )
    assert "Connection refused" in details[0], details
