"""Exit codes, and advice about errors."""

from __future__ import annotations

from enum import IntEnum

from ..errors import Locked, NotFound, TopicsError


class Exit(IntEnum):
    OK = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    CORRUPT = 4


def exit_for(failure: BaseException) -> int:
    """The exit code of an error."""
    code = getattr(failure, "code", "")
    if isinstance(failure, NotFound):
        return Exit.NOT_FOUND
    if code == "corrupt":
        return Exit.CORRUPT
    if code in ("invalid_request", "invalid_directory"):
        return Exit.USAGE
    return Exit.FAILED


_HINTS = {
    "topic_not_found": "`topics ls` lists what is there",
    "consumer_not_found": "`topics lag` lists what is there",
    "router_not_found": "`topics router ls` lists what is there",
    "unreachable": "is a server running there? `topics serve` starts one",
    "unauthorized": "set TOPICS_API_KEY to a key that the server knows",
    "forbidden": "set TOPICS_API_KEY to a key that may do this",
    "corrupt": "`topics verify` names the damage, `topics repair` what giving it up would lose",
    "already_exists": "`topics configure` changes it, `topics ensure` compares its options",
    "topic_exists_incompatible": "`topics describe` shows its config",
    "topic_full": "a consumer has to catch up, or `topics configure --set` has to raise its cap",
    "not_a_queue": "`topics create NAME --set type=queue` makes one",
}


def advice_for(failure: TopicsError, command: str) -> str | None:
    """What to do about an error of a command, if that is known."""
    if isinstance(failure, Locked):
        if failure.url is None:
            return f"process {failure.pid} has it open: end it, or have it serve the directory"
        use = f"a server has it open: use --url {failure.url}"
        match command:
            case "serve":
                return use
            case "backup":
                return f"{use}, and name a directory below the server's backup_dir"
        return f"this needs the directory for itself: stop the server at {failure.url} first"
    return _HINTS.get(failure.code)
