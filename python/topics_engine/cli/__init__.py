"""The command line `topics`."""

import signal
import sys

if "serve" in sys.argv[1:]:
    # SIGHUP makes a server reload. Its default would end a server that still loads its modules.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)

from .main import main

__all__ = ["main"]
