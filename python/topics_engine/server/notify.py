"""Messages to systemd, or another supervisor that sets NOTIFY_SOCKET."""

from __future__ import annotations

import logging
import os
import socket

log = logging.getLogger("topics_engine.server")


def notify(*lines: str) -> None:
    """Sends lines such as `READY=1`; does nothing without a supervisor that listens."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    # A name with @ is in the abstract namespace.
    name = "\0" + address[1:] if address.startswith("@") else address
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.sendto("\n".join(lines).encode(), name)
    except OSError as error:
        log.warning("cannot notify %s: %s", address, error)
