"""The web console: files of the package, compressed once, and the headers that confine the page."""

from __future__ import annotations

import gzip
import hashlib
from functools import cache
from pathlib import Path
from typing import NamedTuple

from .compress import accepts_gzip
from .matching import raw_path
from .messages import CSS, HTML, JAVASCRIPT, Header, HttpError, Request, Response

DIRECTORY = Path(__file__).resolve().parent.parent / "console"
PAGE = "index.html"
PAGE_PATH = b"console"
"""The path of the page from the root."""
LINK = b'<!doctype html><title>Topics</title><a href="%b">console</a>\n' % PAGE_PATH
PAGE_BELOW = "index.html/"
"""The page at `/console/`, from where its files have other relative paths."""
_TYPES = {".html": HTML, ".js": JAVASCRIPT, ".css": CSS}

# Nothing but the server's own files runs or is loaded, no other page may frame the console, and no
# text becomes markup: the console shows what anybody may have written into a record.
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "img-src 'self' data:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
_HEADERS: tuple[Header, ...] = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    # A browser asks each time whether its copy is current: an upgrade shows immediately.
    (b"cache-control", b"no-cache"),
    (b"vary", b"Accept-Encoding"),
)


class File(NamedTuple):
    """A file of the console: its bytes, the same compressed, its type and its tag."""

    body: bytes
    packed: bytes
    content_type: bytes
    etag: bytes


@cache
def _files() -> dict[str, File]:
    files = {
        path.name: _packed(path.read_bytes(), _TYPES[path.suffix])
        for path in DIRECTORY.iterdir()
        if path.suffix in _TYPES
    }
    files[PAGE_BELOW] = _packed(files[PAGE].body.replace(b'"console/', b'"'), HTML)
    return files


def _packed(body: bytes, content_type: bytes) -> File:
    packed = gzip.compress(body, compresslevel=9, mtime=0)
    digest = hashlib.sha256(body).hexdigest()[:32]
    return File(body, packed, content_type, digest.encode())


def console_file(request: Request, name: str) -> Response:
    """The response with a file of the console; 304 if the client has it, 404 if there is none."""
    request.refuse_query()
    if raw_path(request.scope) == b"/":
        # Relative to the root, wherever a proxy or another application has it.
        return Response(302, LINK, HTML, [(b"location", PAGE_PATH)])
    page = PAGE_BELOW if raw_path(request.scope).endswith(b"/") else PAGE
    found = _files().get(name or page)
    if found is None:
        message = f"the console has no file {name[:100]!r}: open /console"
        raise HttpError(404, "not_found", message)
    packed = accepts_gzip(request.headers.get(b"accept-encoding"), len(found.body))
    etag = b'"%s%s"' % (found.etag, b"-gzip" if packed else b"")
    headers = [*_HEADERS, (b"etag", etag)]
    known = [tag.strip() for tag in request.headers.get(b"if-none-match", b"").split(b",")]
    if etag in known or b"W/" + etag in known:
        response = Response(304, b"", found.content_type, headers)
    elif packed:
        headers.append((b"content-encoding", b"gzip"))
        response = Response(200, found.packed, found.content_type, headers)
    else:
        response = Response(200, found.body, found.content_type, headers)
    response.compressible = False
    response.cacheable = True
    return response
