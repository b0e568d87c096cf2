"""A proxy in front of an S3 server that injects faults and counts requests.

Requests are signed with the address that the client knows, so they are forwarded as they are.
"""

from __future__ import annotations

import http.client
from collections import Counter
from http.server import BaseHTTPRequestHandler

from .faulty_server import Faulty


class FaultyS3(Faulty):
    """Passes requests on to a server on this port of the machine."""

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self.counts: Counter[str] = Counter()
        """Requests by method."""
        self.wrong: bool = False
        """Whether every body of an answer has a changed byte."""

    @property
    def port(self) -> int:
        """The port of the proxy."""
        return int(self.url.rpartition(":")[2])

    def answer(self, to: BaseHTTPRequestHandler, body: bytes | None) -> None:
        self.counts[to.command] += 1
        super().answer(to, body)

    def _pass_on(
        self, to: BaseHTTPRequestHandler, body: bytes | None, *, lose: bool, cut: int | None
    ) -> None:
        behind = http.client.HTTPConnection("127.0.0.1", self.behind, timeout=90)
        try:
            behind.putrequest(to.command, to.path, skip_host=True, skip_accept_encoding=True)
            for name, value in to.headers.items():
                behind.putheader(name, value)
            behind.endheaders(body)
            response = behind.getresponse()
            answer = response.read()
        except (OSError, http.client.HTTPException):
            self._end(to)
            return
        finally:
            behind.close()
        if lose:
            self._end(to)
            return
        to.send_response_only(response.status)
        for name, value in response.getheaders():
            if name.lower() not in ("connection", "content-length", "transfer-encoding"):
                to.send_header(name, value)
        length = response.getheader("Content-Length") if to.command == "HEAD" else len(answer)
        to.send_header("Content-Length", str(length or 0))
        to.end_headers()
        to.wfile.write(self._changed(answer)[:cut])
        if cut is not None:
            self._end(to)

    def _changed(self, answer: bytes) -> bytes:
        if not self.wrong or not answer:
            return answer
        middle = len(answer) // 2
        return answer[:middle] + bytes([answer[middle] ^ 1]) + answer[middle + 1 :]
