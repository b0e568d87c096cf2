"""Exit codes, and which failure is which."""

from __future__ import annotations

from enum import IntEnum

_NOT_FOUND = {"topic_not_found", "router_not_found", "consumer_not_found", "not_found"}


class Exit(IntEnum):
    OK = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    CORRUPT = 4


def exit_for(failure: BaseException) -> int:
    """The exit code of a failure, by its stable code."""
    code = getattr(failure, "code", "")
    if code in _NOT_FOUND:
        return Exit.NOT_FOUND
    if code == "corrupt":
        return Exit.CORRUPT
    if code in ("invalid_request", "invalid_directory"):
        return Exit.USAGE
    return Exit.FAILED
