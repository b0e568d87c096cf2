"""`topics serve` whose syncs block between SIGUSR1 and SIGUSR2. It prints each block."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import struct
import sys

from sync_filter import NEW_LISTENER, NOTIFY, filter_syncs

# `struct seccomp_notif` and `struct seccomp_notif_resp`, and the used values.
CALL, VERDICT = struct.Struct("Q72x"), struct.Struct("QqiI")
CONTINUE = 1
HOLD, RELEASE = b"h", b"r"


def supervise(listener: int, orders: int) -> None:
    """Continues or blocks each sync; ends when the order pipe is closed."""
    poll = select.poll()
    for source in (listener, orders):
        poll.register(source, select.POLLIN)
    holds, held = False, []
    while True:
        ready = [source for source, _ in poll.poll()]
        if listener in ready:
            call = bytearray(CALL.size)
            fcntl.ioctl(listener, _request(0, CALL), call)
            held += CALL.unpack(call)
            if holds:
                _say("a sync is held")
        if orders in ready:
            order = os.read(orders, 1)
            if not order:
                return
            holds = order == HOLD
            if holds:
                _say("syncs are held")
        while held and not holds:
            with contextlib.suppress(FileNotFoundError):  # the requesting process was killed
                verdict = VERDICT.pack(held.pop(), 0, 0, CONTINUE)
                fcntl.ioctl(listener, _request(1, VERDICT), verdict)


def _request(number: int, of: struct.Struct) -> int:
    """The number of an ioctl that reads and writes (`_IOWR`)."""
    return 3 << 30 | of.size << 16 | ord("!") << 8 | number


def _say(line: str) -> None:
    os.write(1, line.encode() + b"\n")


def serve() -> int:
    """The server, and a process that supervises its syncs."""
    listener = filter_syncs(NOTIFY, NEW_LISTENER)
    read, write = os.pipe()
    if os.fork() == 0:
        os.close(write)
        supervise(listener, read)
        os._exit(0)
    os.close(read)
    os.close(listener)
    for number, order in ((signal.SIGUSR1, HOLD), (signal.SIGUSR2, RELEASE)):
        signal.signal(number, lambda *_, order=order: os.write(write, order))

    from topics_engine.cli import main

    return main()


if __name__ == "__main__":
    sys.exit(serve())
