"""`topics` with a Python thread beside the event loop that never waits, as an application has that
computes in the process of its server: `python benches/busy.py serve …`."""

from __future__ import annotations

import sys
import threading

from topics_engine.cli import main


def spin() -> None:
    """Takes the interpreter as often as it gets it."""
    turns = 0
    while True:
        turns += 1


if __name__ == "__main__":
    threading.Thread(target=spin, name="busy", daemon=True).start()
    sys.exit(main())
