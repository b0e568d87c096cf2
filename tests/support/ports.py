"""Ports for servers that are told where to listen."""

from __future__ import annotations

import socket

_reserved: list[socket.socket] = []


def free_port() -> int:
    """A port that nothing listens on, and that no other program is given while this process lives.

    A socket that is bound and does not listen leaves the port to a server with SO_REUSEADDR, which
    every server here sets. Linux gives it neither to connections nor to sockets that ask for any
    port.
    """
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind(("127.0.0.1", 0))
    _reserved.append(reserved)
    port: int = reserved.getsockname()[1]
    return port
