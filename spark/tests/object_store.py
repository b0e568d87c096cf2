"""A read-only S3 server over the folder of a prefix, which notes what is read."""

from __future__ import annotations

import hashlib
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

BUCKET = "bucket"
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "reader", "AWS_SECRET_ACCESS_KEY": "reader"}


class ObjectStore:
    """Serves a folder until it is closed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.reads: list[str] = []
        """The keys of the requests."""

        class Handler(_Handler):
            store = self

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        """The URL of the prefix."""
        host, port = self._server.server_address[:2]
        endpoint = f"http://{host!s}:{port}"
        return f"s3://{BUCKET}/remote?endpoint={endpoint}&region=us-east-1"

    def kinds(self) -> set[str]:
        """The kinds of the objects that were read: `HEAD`, `p`, `b`, `r`."""
        return {key if key == "HEAD" else key.rpartition("/")[2][0] for key in self.reads}

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    store: ObjectStore
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def _answer(self) -> None:
        key = unquote(urlsplit(self.path).path).removeprefix(f"/{BUCKET}/remote/")
        self.store.reads.append(key)
        try:
            whole = (self.store.folder / key).read_bytes()
        except OSError:
            self._send(404, b"<Error><Code>NoSuchKey</Code></Error>")
            return
        etag = f'"{hashlib.md5(whole, usedforsecurity=False).hexdigest()}"'
        headers = {"ETag": etag, "Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT"}
        wanted = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
        if wanted is None:
            self._send(200, whole, headers)
            return
        first, last = wanted.groups()
        start = int(first) if first else max(0, len(whole) - int(last))
        end = min(int(last) + 1 if first and last else len(whole), len(whole))
        headers["Content-Range"] = f"bytes {start}-{end - 1}/{len(whole)}"
        self._send(206, whole[start:end], headers)

    def _send(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response_only(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
