"""Runs `topics` with a busy Python thread beside the event loop, like an application that
computes in the process of its server: `python benches/busy.py serve …`."""

from __future__ import annotations

import sys
import threading

from topics_engine.cli import main


def spin() -> None:
    """Uses the interpreter without pause."""
    turns = 0
    while True:
        turns += 1


if __name__ == "__main__":
    threading.Thread(target=spin, name="busy", daemon=True).start()
    sys.exit(main())
