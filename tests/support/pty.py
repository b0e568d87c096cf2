"""A terminal of the kernel's, which programs can tell from a pipe."""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import termios
import threading
from collections.abc import Iterator
from typing import TextIO


class Pty:
    """A terminal: `stream` is what a program writes to, `text()` what was shown."""

    def __init__(self, columns: int = 100, lines: int = 40) -> None:
        self._master, slave = os.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.stream: TextIO = os.fdopen(slave, "w", encoding="utf-8", buffering=1)
        self._shown = bytearray()
        # A terminal holds some kilobytes; a program that writes more waits.
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        # EIO is the end of a terminal.
        with contextlib.suppress(OSError):
            while piece := os.read(self._master, 65536):
                self._shown += piece

    def text(self) -> str:
        """Closes the terminal and returns what it showed."""
        self.stream.close()
        self._reader.join()
        return self._shown.decode().replace("\r\n", "\n")

    def close(self) -> None:
        """Closes both ends."""
        if not self.stream.closed:
            self.stream.close()
        self._reader.join()
        os.close(self._master)


@contextlib.contextmanager
def terminal() -> Iterator[Pty]:
    """A terminal for a block."""
    made = Pty()
    try:
        yield made
    finally:
        made.close()
