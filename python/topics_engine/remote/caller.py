"""Requests with a deadline, and with retries where they are safe.

| outcome of an attempt | next |
|---|---|
| nothing was sent: no connection | retry |
| sent, but no response | retry if the request is `repeatable` |
| 429 and 503, with `Retry-After` | retry, except for caps that do not clear by waiting |
| 502, 504, 408 | like no response |
"""

from __future__ import annotations

import json
import logging
import random
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from itertools import count
from typing import Any

from .. import errors
from ..client.backend import call_timeout
from ..client.request import JSON, encode_json, encode_query, path_of
from ..errors import TimedOut, TopicsError, Unavailable, Unreachable
from .transport import EVENTS, Answer, NoAnswer, Options, PoolKind, Stream, Transport, content_of

FIRST_PAUSE, LONGEST_PAUSE = 0.02, 2.0
# With less time left there is no repeat: it would be late, and hide why the call failed before.
SHORTEST_REPEAT = 0.05
# Limits that do not clear by waiting; a refusal by any other limit is retried.
CAPS = frozenset(
    "max_topics max_routers max_total_bytes ephemeral_bytes max_watch_topics max_watch_sessions"
    " max_consumers max_txn_writers max_txn_writers_per_key".split()
)
ARROW = "application/vnd.apache.arrow.stream"

log = logging.getLogger("topics_engine.remote")


class _Logging(threading.local):
    """Whether a handler of what the current thread logs is running: it may make calls of a client,
    whose own repeats are not logged again.
    """

    running = False


_logging = _Logging()


def log_repeat(wait: float, error: TopicsError) -> None:
    """Logs that a call is repeated after `wait` seconds."""
    if not _logging.running:
        _logging.running = True
        try:
            log.debug("again in %.3f s: %s", wait, error)
        finally:
            _logging.running = False


class CallStatus:
    """Whether an attempt without a response may have been executed before the final one."""

    __slots__ = ("outcome_unknown",)

    def __init__(self) -> None:
        self.outcome_unknown = False


class Caller:
    """Sends requests, retries them within a deadline, and raises errors as exceptions."""

    def __init__(self, transport: Transport, options: Options) -> None:
        self.transport = transport
        self.options = options
        self._run = secrets.token_urlsafe(9)
        self._writes = count()

    def key(self) -> str:
        """A unique idempotency key."""
        return f"{self._run}.{next(self._writes):x}"

    def json(self, verb: str, name: str = "", body: Any = None, **how: Any) -> dict[str, Any]:
        """Encodes a JSON body, sends the request and decodes the response."""
        raw = None if body is None else encode_json(body)
        found: dict[str, Any] = json.loads(self.call(verb, name, raw, **how))
        return found

    def call(
        self,
        verb: str,
        name: str = "",
        body: bytes | None = None,
        *,
        part: str = "",
        query: Mapping[str, Any] | None = None,
        hot: bool = False,
        wait: float = 0.0,
        long: bool = False,
        repeatable: bool = True,
        retry_refusals: bool = True,
        content: str = JSON,
        accept: str = JSON,
        status: CallStatus | None = None,
    ) -> bytes:
        """See `client.request.Caller.call`.

        Args:
            hot: use the connections for short reads and writes.
            wait: seconds that the server may wait before it responds.
            repeatable: retry an attempt whose outcome is unknown.
            retry_refusals: retry 429 and 503.
            status: is told whether an attempt's outcome is unknown.
        """
        method, path = target(verb, name, part, query)
        kind = PoolKind.WAIT if wait or long else PoolKind.HOT if hot else PoolKind.PLAIN
        headers = {"Accept": accept}
        if body is not None:
            headers["Content-Type"] = content
        attempt = 86_400.0 if long else self.options.timeout + wait
        until = time.monotonic() + min(self.options.deadline + wait, call_timeout.get())

        def once(left: float) -> Answer:
            timeout = attempt if long else max(0.001, min(attempt, left))
            return self.transport.request(kind, method, path, headers, body, timeout)

        answer = self._until(until, once, repeatable, retry_refusals, status)
        check_content(answer, accept)
        return answer.body

    def partly(self, verb: str, topic: str, body: bytes, take: Callable[[Answer], bool]) -> None:
        """Fetches columns, passes them to `take`, and retries while `take` returns False."""
        headers = {"Accept": ARROW, "Content-Type": JSON}
        method, path = target(verb, topic)
        until = time.monotonic() + self.options.deadline

        def once(left: float) -> Answer:
            timeout = max(0.001, min(self.options.timeout, left))
            request = self.transport.request
            answer = request(PoolKind.PLAIN, method, path, headers, body, timeout, partly=True)
            if answer.status < 400:
                check_content(answer, ARROW)
                if not take(answer):
                    raise NoAnswer("the stream broke off", sent=True)
            return answer

        self._until(until, once, True, True, None)

    def stream(
        self,
        path: str,
        headers: Mapping[str, str],
        idle: float,
        until: float,
        repeatable: bool = True,
    ) -> Stream:
        """Opens a stream of events."""
        found: list[Stream] = []

        def once(left: float) -> Answer:
            timeout = max(0.001, min(self.options.timeout, left))
            opened = self.transport.stream(path, {"Accept": EVENTS, **headers}, timeout, idle)
            if isinstance(opened, Answer):
                if opened.status < 400:
                    check_content(opened, EVENTS)
                return opened
            found.append(opened)
            return Answer(200, {}, b"")

        self._until(until, once, repeatable, True, None)
        return found[0]

    def pause(self, told: Mapping[str, Any]) -> None:
        """Waits before a stream that an error event ended is opened again: as long as the event
        says, at most 2 s.
        """
        self.transport.sleep(min(2.0, told.get("retry_after_ms", 100) / 1000))

    def _until(
        self,
        until: float,
        once: Any,
        repeatable: bool,
        retry_refusals: bool,
        status: CallStatus | None,
    ) -> Answer:
        pause = FIRST_PAUSE
        while True:
            error: TopicsError
            after = 0.0
            cause: NoAnswer | None = None
            try:
                answer: Answer = once(until - time.monotonic())
            except NoAnswer as none:
                error = self._unreachable(none)
                again = not none.lasting and (repeatable or not none.sent)
                outcome_unknown, cause = none.sent, none
            else:
                if answer.status < 400:
                    return answer
                error, after = failure(answer)
                outcome_unknown = answer.status in (408, 502, 504)
                again = (
                    repeatable
                    if outcome_unknown
                    else retry_refusals and is_transient(answer.status, error)
                )
            if status is not None and outcome_unknown:
                status.outcome_unknown = True
            wait = max(after, pause * random.uniform(0.5, 1.0))
            if not again or time.monotonic() + wait + SHORTEST_REPEAT >= until:
                raise error from cause
            log_repeat(wait, error)
            self.transport.sleep(wait)
            pause = min(pause * 2, LONGEST_PAUSE)

    def _unreachable(self, none: NoAnswer) -> Unavailable:
        outcome = "unknown" if none.sent else "not_sent"
        detail = {"url": self.options.url, "reason": "unreachable", "outcome": outcome}
        kind = TimedOut if none.timed_out else Unreachable
        return kind(f"{self.options.url}: {none}", detail=detail)


def is_transient(status: int, error: TopicsError) -> bool:
    """Whether waiting may clear a refusal."""
    if status == 429:
        return error.detail.get("limit") not in CAPS
    return status == 503


def check_content(answer: Answer, accept: str) -> None:
    """Refuses a success that no topics server sent: a redirection, or another application.

    Raises:
        TopicsError: the content is not of the accepted type.
    """
    content = content_of(answer.headers)
    if content == accept:
        return
    what = f"with content of type {content!r} instead of {accept}"
    if location := answer.headers.get("location"):
        what = f"redirects to {location!r}, which is not followed"
    error = errors.make("unknown", foreign(answer, what), {})
    error.status = answer.status
    raise error


def foreign(answer: Answer, what: str) -> str:
    """The message for an answer that no topics server sent."""
    body = answer.body[:200].decode("utf-8", "replace").strip()
    return f"HTTP {answer.status} {what}: check the URL, and proxies on the way. The body: {body!r}"


def failure(answer: Answer) -> tuple[TopicsError, float]:
    """The exception of an error response, and the seconds to wait before a retry."""
    code, message, detail = "unknown", "", {}
    told_after = answer.headers.get("retry-after", "")
    try:
        told = json.loads(answer.body)["error"]
        code, message = str(told["code"]), str(told["message"])
        detail = dict(told.get("detail") or {})
    except (ValueError, KeyError, TypeError):
        message = foreign(answer, "without the error object of a topics server")
    if told_after.isdigit() and answer.status in (429, 503):
        detail.setdefault("retry_after_ms", int(told_after) * 1000)
    if answer.status in (408, 502, 503, 504):
        # The server or a proxy is unavailable; `Closed` would mean that this client is closed.
        kind = TimedOut if answer.status == 408 else Unavailable
        error: TopicsError = kind(message, code, detail)
    else:
        error = errors.make(code, message, detail)
    error.status = answer.status
    return error, float(detail.get("retry_after_ms", 0)) / 1000


def target(
    verb: str, name: str = "", part: str = "", query: Mapping[str, Any] | None = None
) -> tuple[str, str]:
    """Method, path and query of a request."""
    method, path = path_of(verb, name, part)
    asked = encode_query(query)
    return method, f"{path}?{asked}" if asked else path


class WaitBudget:
    """The time left of a long wait that is made of several requests."""

    def __init__(self, seconds: float | None) -> None:
        self._until = None if seconds is None else time.monotonic() + max(0.0, seconds)

    def next_wait(self, longest: float) -> float:
        """Seconds that the next request may wait."""
        if self._until is None:
            return longest
        return min(longest, max(0.0, self._until - time.monotonic()))

    @property
    def is_spent(self) -> bool:
        return self._until is not None and time.monotonic() >= self._until
