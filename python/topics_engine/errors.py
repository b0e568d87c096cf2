"""The exceptions.

    TopicsError
    ├── InvalidRequest     an argument is wrong
    ├── NotFound           the topic, consumer, router, … does not exist
    ├── Conflict           the state does not allow the call
    │   ├── AlreadyExists        `create` of a topic that exists
    │   ├── ConsumerFenced       another reader took the consumer over
    │   ├── HeadMismatch         `expect_head` is not the head
    │   ├── IdempotencyMismatch  the key was used for other records
    │   └── LeaseLost            the lease of a job is over: .reason
    ├── Full               a cap with discard="reject"          retryable
    ├── Throttled          overload: .retry_after seconds       retryable
    ├── Unavailable        the disk or the network refuses      retryable
    │   ├── Unreachable    the server cannot be reached         retryable
    │   └── TimedOut       it did not answer in time            retryable
    ├── Corrupt            bytes fail their checksum: .file, .offset
    ├── Unauthorized       the server needs an API key
    ├── Forbidden          the API key does not allow the call
    ├── Locked             another process has the directory: .pid, .url
    ├── Closed             the engine is closed
    └── DataLoss           records were lost: .gap

Each has `.code` (stable, the same as over HTTP), `.status` (of the HTTP answer), `.detail` (facts
for programs) and `.retryable`.
`InvalidRequest` is also a `ValueError`, `NotFound` a `LookupError`, `Unreachable` a
`ConnectionError` and `TimedOut` a `TimeoutError`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from . import _core

if TYPE_CHECKING:
    from .client.values import Gap

__all__ = [
    "AlreadyExists",
    "Closed",
    "Conflict",
    "ConsumerFenced",
    "Corrupt",
    "DataLoss",
    "Forbidden",
    "Full",
    "HeadMismatch",
    "IdempotencyMismatch",
    "InvalidRequest",
    "LeaseLost",
    "Locked",
    "NotFound",
    "Throttled",
    "TimedOut",
    "TopicsError",
    "Unauthorized",
    "Unavailable",
    "Unreachable",
    "make",
]


class TopicsError(Exception):
    """The base class. Errors with code `internal`, which are bugs, are of this class itself."""

    default_code: ClassVar[str] = "internal"
    retryable: ClassVar[bool] = False

    def __init__(
        self, message: str, code: str | None = None, detail: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(message)
        self.code = self.default_code if code is None else code
        self.detail: dict[str, Any] = dict(detail or {})
        self.status = _core.error_status(self.code)
        """The HTTP status: that of the server's answer, or that with which a server answers."""

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.code, self.detail), {"status": self.status}


class InvalidRequest(TopicsError, ValueError):
    """An argument is wrong; the message names it and says what is allowed."""

    default_code = "invalid_request"


class NotFound(TopicsError, LookupError):
    """The topic, consumer, router or transaction writer does not exist."""

    default_code = "not_found"


class Conflict(TopicsError):
    """The state does not allow the call: `topic_exists_incompatible`, `topic_not_empty`, …."""

    default_code = "conflict"


class AlreadyExists(Conflict):
    """`create` of a topic that exists: `ensure` accepts it, if it has the same options."""

    default_code = "already_exists"


class ConsumerFenced(Conflict):
    """Another reader took the consumer over: this handle reads and commits no more.

    It continues from the stored cursor. A new handle takes the consumer back; use a queue to share
    work.
    """

    default_code = "consumer_fenced"


class HeadMismatch(Conflict):
    """`expect_head` is not the head: read up to it, and decide again."""

    default_code = "head_mismatch"


class IdempotencyMismatch(Conflict):
    """The idempotency key was used for other records within the window: use another key."""

    default_code = "idempotency_mismatch"


class LeaseLost(Conflict):
    """The lease of a job is over: its work does not count, and another worker gets the job.

    `.reason` is `restarted`, `ended`, `gone`, `finished` or `overdue`; the message says what each
    means, and what helps.
    """

    default_code = "lease_lost"

    @property
    def reason(self) -> str:
        """Why it is over."""
        return str(self.detail.get("reason", "ended"))


LEASE_ENDS = {
    "restarted": "the server has started anew since the claim; leases_durable=True keeps leases",
    "ended": "it ran out, or its stream broke or was closed; another worker may have the job",
    "gone": "the job was acked or deleted",
    "finished": "the job was acked, nacked or released before",
    "overdue": "it could not be renewed in time",
}
"""What the reasons of `LeaseLost` mean."""


class Full(TopicsError):
    """A cap of a topic with `discard="reject"` refuses the write."""

    default_code = "topic_full"
    retryable = True


class Throttled(TopicsError):
    """The engine is overloaded, or at a limit. `.retry_after` is in seconds."""

    default_code = "throttled"
    retryable = True

    @property
    def retry_after(self) -> float:
        """Seconds after which to try again."""
        return float(self.detail.get("retry_after_ms", 1000)) / 1000


class Unavailable(TopicsError):
    """The disk refuses, or the server cannot be reached.

    A read of cold records that cannot be fetched has the code `cold_unavailable`; otherwise
    `.detail["reason"]` is `no_space`, `no_descriptors`, `poisoned`, `lock_lost`, `io`, `read_only`
    or `unreachable`.
    """

    default_code = "storage_unavailable"
    retryable = True


class Unreachable(Unavailable, ConnectionError):
    """The server cannot be reached, or the connection broke.

    `.detail["outcome"]` is `not_sent`, or `unknown` if the server may have executed the call.
    """

    default_code = "unreachable"


class TimedOut(Unavailable, TimeoutError):
    """The server did not answer before the deadline. `.detail` is that of `Unreachable`."""

    default_code = "unreachable"


class Corrupt(TopicsError):
    """Bytes of a file fail their checksum."""

    default_code = "corrupt"

    @property
    def file(self) -> str:
        """The file, relative to the data directory."""
        return str(self.detail.get("file", ""))

    @property
    def offset(self) -> int:
        """The byte offset in the file."""
        return int(self.detail.get("offset", 0))


class Unauthorized(TopicsError):
    """The server needs an API key that it knows."""

    default_code = "unauthorized"


class Forbidden(TopicsError):
    """The API key does not allow the call."""

    default_code = "forbidden"


class Locked(TopicsError):
    """Another engine has the directory open."""

    default_code = "locked"

    @property
    def pid(self) -> int:
        """The process that has it open."""
        return int(self.detail.get("pid", 0))

    @property
    def url(self) -> str | None:
        """Where that process serves it, if it does."""
        return self.detail.get("url")


class Closed(TopicsError):
    """The engine is closed, or was opened by the parent process of a fork."""

    default_code = "shutting_down"


class DataLoss(TopicsError):
    """Records were lost; `.gap` is their range.

    Raised by a reader with `gaps="raise"`, and once by the next `sync` if acked records of
    class `memory` were lost before they were written: append them again.
    """

    default_code = "data_loss"

    def __init__(
        self,
        message: str,
        code: str | None = None,
        detail: Mapping[str, Any] | None = None,
        gap: Gap | None = None,
    ) -> None:
        super().__init__(message, code, detail)
        self.gap = gap

    def __reduce__(self) -> tuple[Any, ...]:
        args = (str(self), self.code, self.detail, self.gap)
        return type(self), args, {"status": self.status}


_CLASSES: dict[str, type[TopicsError]] = {
    **dict.fromkeys(
        (
            "invalid_request",
            "invalid_directory",
            "batch_too_large",
            "record_too_large",
            "payload_too_large",
            "unsupported_media_type",
            "not_acceptable",
            "method_not_allowed",
            "headers_too_large",
        ),
        InvalidRequest,
    ),
    **dict.fromkeys(
        (
            "not_found",
            "topic_not_found",
            "router_not_found",
            "consumer_not_found",
            "txn_not_found",
            "session_gone",
        ),
        NotFound,
    ),
    **dict.fromkeys(
        (
            "topic_exists_incompatible",
            "topic_not_empty",
            "txn_incomplete",
            "stale_epoch",
            "router_cycle",
            "not_a_queue",
            "consumer_busy",
        ),
        Conflict,
    ),
    "already_exists": AlreadyExists,
    "consumer_fenced": ConsumerFenced,
    "head_mismatch": HeadMismatch,
    "idempotency_mismatch": IdempotencyMismatch,
    "lease_lost": LeaseLost,
    "topic_full": Full,
    "throttled": Throttled,
    "storage_unavailable": Unavailable,
    "cold_unavailable": Unavailable,
    "not_ready": Unavailable,
    "request_timeout": TimedOut,
    "unreachable": Unreachable,
    "corrupt": Corrupt,
    "unauthorized": Unauthorized,
    "forbidden": Forbidden,
    "locked": Locked,
    "shutting_down": Closed,
    "data_loss": DataLoss,
}


def make(code: str, message: str, detail: Mapping[str, Any] | None = None) -> TopicsError:
    """The exception of a code.

    Args:
        code: a stable code, as over HTTP.
        message: the text for people.
        detail: facts for programs.
    """
    return _CLASSES.get(code, TopicsError)(message, code, detail)


def from_native(code: str, message: str, detail: str) -> TopicsError:
    """The exception of an error of the native module; `detail` is a JSON object."""
    if code == "locked":
        message = f"{message}{_advice_about_lock(json.loads(detail))}"
    return make(code, message, json.loads(detail))


def from_body(body: bytes) -> TopicsError:
    """The exception of the body of an answer."""
    told = json.loads(body)["error"]
    return make(told["code"], told["message"], told.get("detail"))


def _advice_about_lock(detail: Mapping[str, Any]) -> str:
    """What to do about a directory that is locked."""
    pid, url = detail.get("pid", 0), detail.get("url")
    if url:
        return f": te.connect({url!r})"
    if pid == os.getpid():
        return ", which is this one: use that handle, or close it first"
    if pid and not _is_alive(pid):
        return ", which has ended: end the processes that it started, one of them keeps the lock"
    return ""


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
