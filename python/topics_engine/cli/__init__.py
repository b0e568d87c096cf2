"""The command line `topics`."""

from .main import main

__all__ = ["main"]
