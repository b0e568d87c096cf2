"""`topics serve` whose kernel refuses every `fdatasync` with EIO, from SIGUSR1 on."""

from __future__ import annotations

import errno
import signal
import sys

from sync_filter import ALL_THREADS, ERRNO, filter_syncs

from topics_engine.cli import main


def refuse(_signal: int, _frame: object) -> None:
    """From now on every sync fails."""
    filter_syncs(ERRNO | errno.EIO, ALL_THREADS)
    print("syncs are refused", flush=True)


if __name__ == "__main__":
    signal.signal(signal.SIGUSR1, refuse)
    sys.exit(main())
