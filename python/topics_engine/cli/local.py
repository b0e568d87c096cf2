"""A data directory opened in this process, behind the same contract as a server."""

from __future__ import annotations

import os
import select
from urllib.parse import urlsplit

from .. import _core
from ..asgi.matching import Router, decode_name
from ..asgi.messages import HttpError
from ..asgi.settings import Settings
from .transport import Answer


class LocalTransport:
    """The routes of `/v0` without a socket: the core answers, and this waits for it."""

    def __init__(self, settings: Settings) -> None:
        self.where = os.path.abspath(settings.data_dir)
        self._engine = _core.Engine.open(settings.data_dir, settings.engine)
        self._http = _core.Http(self._engine, settings.engine)
        self._router = Router()
        self._token = 0

    def request(self, method: str, target: str, body: bytes | None, key: str) -> Answer:
        parts = urlsplit(target)
        try:
            found = self._router.match(method, parts.path.encode())
            name, part = decode_name(found.name), decode_name(found.part)
        except HttpError as error:
            response = error.response()
            return response.status, response.body
        self._token += 1
        query = parts.query.encode()
        answer = self._http.call(
            found.route.verb, name, query, body or b"", 0, self._token, key.encode(), part
        )
        return self._wait() if answer is None else answer

    def _wait(self) -> Answer:
        bridge = self._http.bridge
        self._http.flush()
        completions = bridge.drain()
        try:
            while True:
                for token, status, body in completions:
                    if token == self._token:
                        return status, body
                select.select([bridge.fd], [], [])
                completions = bridge.drain()
        except BaseException:
            self._http.cancel(self._token)
            raise

    def close(self) -> None:
        self._http.close()
        self._engine.close()
