"""How a command reaches the topics: a server over HTTP, or a directory in this process.

Both speak the `/v0` contract: a method, a path, a JSON body, and an answer that is a status and
JSON text. Everything above is the same for both.
"""

from __future__ import annotations

import http.client
import json
import random
import time
from collections.abc import Iterator
from typing import Any, Protocol
from urllib.parse import quote, urlsplit

Answer = tuple[int, bytes]

# Seconds for which a refusal that may pass, or a server that is not there, is tried again.
PATIENCE = 10.0
RETRYABLE = {429, 503}
_DECODER = json.JSONDecoder()
SAFE_TO_REPEAT = {"GET", "PUT", "DELETE"}


class Failure(Exception):
    """An answer that is an error, or no answer at all."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


class Transport(Protocol):
    """One request, one answer."""

    @property
    def where(self) -> str: ...
    def request(self, method: str, target: str, body: bytes | None, key: str) -> Answer: ...
    def close(self) -> None: ...


class HttpTransport:
    """A keep-alive connection to a server."""

    def __init__(self, url: str, token: str | None = None, timeout: float = 60.0) -> None:
        parts = urlsplit(url if "//" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url!r} is not an http URL")
        self.where = url
        kind = (
            http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        )
        self._prefix = parts.path.rstrip("/")
        self._connection = kind(parts.hostname, parts.port, timeout=timeout)
        self._headers = {"Accept": "application/json"}
        if token:
            self._headers["Authorization"] = f"Bearer {token}"

    def request(self, method: str, target: str, body: bytes | None, key: str) -> Answer:
        headers = dict(self._headers)
        if body is not None:
            headers["Content-Type"] = "application/json"
        if key:
            headers["Idempotency-Key"] = key
        try:
            self._connection.request(method, self._prefix + target, body, headers)
            response = self._connection.getresponse()
            return response.status, response.read()
        except (OSError, http.client.HTTPException):
            # The next request connects anew.
            self._connection.close()
            raise

    def close(self) -> None:
        self._connection.close()


class Client:
    """Requests with errors as exceptions, and patience where it is safe."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    @property
    def where(self) -> str:
        return self._transport.where

    def call(
        self, method: str, target: str, body: Any = None, *, key: str = "", repeat: bool = False
    ) -> Any:
        """The decoded answer; raises `Failure`."""
        return json.loads(self.text(method, target, body, key=key, repeat=repeat))

    def text(
        self, method: str, target: str, body: Any = None, *, key: str = "", repeat: bool = False
    ) -> str:
        """The answer as it came. `repeat` says that sending the request twice does no harm; a
        write with a key says so by itself."""
        raw = None
        if body is not None:
            raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        repeat = repeat or bool(key) or method in SAFE_TO_REPEAT
        deadline = time.monotonic() + PATIENCE
        pause = 0.05
        while True:
            try:
                status, answer = self._transport.request(method, target, raw, key)
            except (OSError, http.client.HTTPException) as error:
                reason = f"{self.where}: {error or type(error).__name__}"
                failure = Failure(0, "unreachable", reason)
                again = repeat
            else:
                if status < 400:
                    return answer.decode()
                failure = _failure(status, answer)
                again = status in RETRYABLE
            if not again or time.monotonic() + pause > deadline:
                raise failure
            time.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(pause * 2, 2.0)

    def close(self) -> None:
        self._transport.close()


def _failure(status: int, answer: bytes) -> Failure:
    try:
        error = json.loads(answer)["error"]
        return Failure(status, error["code"], error["message"])
    except (ValueError, KeyError, TypeError):
        shown = answer[:200].decode("utf-8", "replace")
        return Failure(status, "unknown", f"HTTP {status}: {shown}")


def topic_path(topic: str, verb: str = "") -> str:
    """The target of a verb on a topic."""
    return f"/v0/topics/{quote(topic, safe='')}" + (f"/{verb}" if verb else "")


def members(text: str, at: int) -> Iterator[tuple[str, int, int]]:
    """The members of the JSON object or array at `at`: name (empty in an array), start and end.

    What is taken from `text` with these is the value as it was sent. A value that is written again
    from its decoded form is not: numbers change.
    """
    at = _skip(text, at)
    named = text[at] == "{"
    at = _skip(text, at + 1)
    while text[at] not in "]}":
        name = ""
        if named:
            name, at = _DECODER.raw_decode(text, at)
            at = _skip(text, _skip(text, at) + 1)
        _, end = _DECODER.raw_decode(text, at)
        yield name, at, end
        at = _skip(text, end)
        if text[at] == ",":
            at = _skip(text, at + 1)


def split_records(text: str) -> tuple[dict[str, Any], list[tuple[dict[str, Any], str]]]:
    """A diff's answer: its fields without `records`, and each record decoded and as it came."""
    fields: dict[str, Any] = {}
    records: list[tuple[dict[str, Any], str]] = []
    for name, start, end in members(text, 0):
        if name == "records":
            for _, a, b in members(text, start):
                records.append((json.loads(text[a:b]), text[a:b]))
        else:
            fields[name] = json.loads(text[start:end])
    return fields, records


def _skip(text: str, at: int) -> int:
    while text[at] in " \t\r\n":
        at += 1
    return at
