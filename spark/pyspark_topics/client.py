"""A small HTTP client on the standard library: it keeps one connection and retries while a server
is away or busy. Every request that it repeats is idempotent."""

from __future__ import annotations

import http.client
import json
import logging
import random
import select
import socket
import ssl
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlsplit

from .errors import Interrupted, InvalidOption, TopicsError
from .options import Connection

JSON = "application/json"
ARROW = "application/vnd.apache.arrow.stream"
BROKEN = (OSError, http.client.HTTPException)
"""The errors of a broken connection."""

NO_SUCH_NAME = (socket.EAI_NONAME, socket.EAI_FAIL, getattr(socket, "EAI_NODATA", None))
"""What a resolver says of a name that does not exist; `EAI_AGAIN` may pass."""
PLAIN_ANSWERS = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG")
"""What OpenSSL says of a peer that answers in plain text."""

CONNECT_SECONDS = 10.0
"""Seconds to connect, with TLS, after which there is another attempt."""

SILENCE = 300.0
"""Seconds without a byte after which a connection counts as broken."""

log = logging.getLogger("pyspark_topics")


class Backoff:
    """Increasing waits, up to a deadline."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.reset()

    def reset(self) -> None:
        """Resets the waits after progress."""
        self._until = time.monotonic() + self._seconds
        self._next = 0.05

    def wait(self, error: Exception, least: float = 0.0) -> None:
        """Waits; raises `error` if no time is left."""
        pause = max(least, self._next * random.uniform(0.5, 1.0))
        if time.monotonic() + pause >= self._until:
            raise error
        self._next = min(self._next * 2, 5.0)
        time.sleep(pause)


class Client:
    """Requests to one server. Not thread-safe."""

    def __init__(self, to: Connection) -> None:
        assert to.url is not None
        self._url = urlsplit(to.url)
        self._retry_seconds = to.retry_seconds
        self._ca_file = to.ca_file
        self.compression = to.compression
        self._headers = {"Authorization": f"Bearer {to.token}"} if to.token else {}
        self._connection: http.client.HTTPConnection | None = None
        self._is_tls: bool | None = None

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        content: str = JSON,
        once: bool = False,
    ) -> dict[str, Any]:
        """The answer to a request; retried while the server is unavailable, unless `once`."""
        if body is not None and content == JSON:
            body = json.dumps(body).encode()
        backoff = Backoff(self._retry_seconds)
        while True:
            try:
                response = self.open(method, path, body, content)
                answer = json.loads(response.read())
                assert isinstance(answer, dict)
                return answer
            except (*BROKEN, ValueError) as e:
                self.close()
                self.refuse_permanent(e)
                lost = Interrupted(f"{self._url.geturl()}: {e!r}", "unavailable")
                if once:
                    raise lost from e
                log.warning("%s %s: %r; trying again", method, path, e)
                backoff.wait(lost)
            except TopicsError as e:
                if once or not retryable(e):
                    raise
                log.warning("%s %s: %s; trying again", method, path, e)
                backoff.wait(e, e.retry_after)

    def open(
        self, method: str, path: str, body: bytes | None, content: str = JSON, accept: str = JSON
    ) -> http.client.HTTPResponse:
        """One attempt; the caller reads the body of the answer. A refusal is raised."""
        headers = {"Accept": accept, **self._headers}
        if body is not None:
            headers["Content-Type"] = content
        if self._connection is not None and _is_closed_by_server(self._connection):
            self.close()
        if self._connection is None:
            self._connection = self._connect()
        try:
            self._connection.request(method, self._url.path + path, body, headers)
            response = self._connection.getresponse()
        except BaseException:
            self.close()
            raise
        if response.status >= 400:
            raise self._refusal(response)
        self._check_content(response, accept)
        return response

    def _check_content(self, response: http.client.HTTPResponse, accept: str) -> None:
        """Refuses a success that no topics server sent: a redirection, or another application."""
        found = response.headers.get_content_type()
        if response.status < 300 and found == accept:
            return
        what = f"content of type {found!r} instead of {accept}"
        if location := response.headers["Location"]:
            what = f"a redirection to {location!r}, which is not followed"
        self.close()
        raise InvalidOption(
            f'"url" {self._url.geturl()}: what answers there is no topics server: '
            f"HTTP {response.status} with {what}"
        )

    def refuse_permanent(self, error: Exception) -> None:
        """Raises what no wait can mend: a name that does not exist, TLS against a plain server, a
        certificate that is not accepted, a server that does not speak HTTP."""
        why = None
        if isinstance(error, ssl.SSLCertVerificationError):
            why = f"its certificate is not accepted: {error.verify_message}"
            if self._ca_file is None:
                why += '; a private authority is named by "caFile"'
            else:
                why += f' ("caFile" is {self._ca_file!r})'
        elif isinstance(error, ssl.SSLError) and error.reason in PLAIN_ANSWERS:
            why = "the server does not speak TLS: use http://"
        elif isinstance(error, socket.gaierror) and error.errno in NO_SUCH_NAME:
            why = f"the host {self._url.hostname!r} does not exist: {error.strerror}"
        elif isinstance(error, (http.client.BadStatusLine, ConnectionResetError)):
            if self._url.scheme == "http" and self._speaks_tls():
                why = "the server speaks TLS: use https://"
            elif type(error) is http.client.BadStatusLine:
                why = "what answers there does not speak HTTP/1.1"
        if why is not None:
            raise InvalidOption(f'"url" {self._url.geturl()}: {why}') from error

    def _speaks_tls(self) -> bool:
        """Whether a TLS handshake succeeds where a plain request was cut off. Asked once."""
        if self._is_tls is None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            address = (self._url.hostname or "", self._url.port or 80)
            try:
                with socket.create_connection(address, timeout=2.0) as sock:
                    context.wrap_socket(sock, server_hostname=self._url.hostname).close()
                self._is_tls = True
            except OSError:
                self._is_tls = False
        return self._is_tls

    def close(self) -> None:
        """Closes the connection; the next request opens another."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _connect(self) -> http.client.HTTPConnection:
        host, port = self._url.hostname or "", self._url.port
        made = (
            http.client.HTTPSConnection(
                host, port, timeout=CONNECT_SECONDS, context=self._trusting()
            )
            if self._url.scheme == "https"
            else http.client.HTTPConnection(host, port, timeout=CONNECT_SECONDS)
        )
        made.connect()
        made.sock.settimeout(SILENCE)
        return made

    def _trusting(self) -> ssl.SSLContext:
        """Read for each connection: a certificate that is renewed in place is used by the next."""
        try:
            return ssl.create_default_context(cafile=self._ca_file)
        except OSError as e:
            # The machine that runs the task has no such file, or it holds no certificate.
            where = socket.gethostname()
            raise InvalidOption(f'"caFile" {self._ca_file!r} on {where}: {e}') from e

    def _refusal(self, response: http.client.HTTPResponse) -> TopicsError:
        body = response.read()
        if response.will_close:
            self.close()
        wait = response.getheader("Retry-After") or ""
        try:
            error: Mapping[str, Any] = json.loads(body)["error"]
            code, message = str(error["code"]), str(error["message"])
            detail = error.get("detail")
        except (ValueError, KeyError, TypeError):
            code, detail = f"http_{response.status}", None
            message = (
                f'"url" {self._url.geturl()}: HTTP {response.status} without the error object of a '
                f"topics server: check it, and proxies on the way. The body: {body[:200]!r}"
            )
        after = float(wait) if wait.isdecimal() else 0.0
        return TopicsError(message, code, detail, after)


def _is_closed_by_server(connection: http.client.HTTPConnection) -> bool:
    """Whether the server has closed an idle connection."""
    if connection.sock is None:
        return False
    poll = select.poll()
    poll.register(connection.sock, select.POLLIN)
    # The only valid event before a request is the end of the connection.
    return bool(poll.poll(0))


def retryable(error: TopicsError) -> bool:
    """Whether the same request may succeed later."""
    passing = (
        "cold_unavailable",
        "not_ready",
        "request_timeout",
        "shutting_down",
        "storage_unavailable",
        "throttled",
        # A proxy sends these, without an error object, while its server is away or busy.
        *("http_408", "http_429", "http_502", "http_503", "http_504"),
    )
    return isinstance(error, Interrupted) or error.code in passing


def path_of(*parts: str) -> str:
    """A path whose parts are encoded once."""
    return "/".join(["/v0", *(quote(part, safe="") for part in parts)])
