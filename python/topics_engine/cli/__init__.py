"""The command line `topics`."""

import signal
import sys
import threading

if "serve" in sys.argv[1:] and threading.current_thread() is threading.main_thread():
    # SIGHUP makes a server reload. Its default would end a server that still loads its modules.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)

from .main import main

__all__ = ["main"]
