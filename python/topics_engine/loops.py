"""The seam between the native core and an event loop.

What the core answers later comes over one descriptor and becomes the result of a future. Each call
has a token; what comes for a token that nobody awaits any more is dropped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Pending(Generic[T]):
    """The answers that are still to come on one event loop."""

    def __init__(self, fd: int, drain: Callable[[], None]) -> None:
        self.loop = asyncio.get_running_loop()
        self._fd = fd
        self._futures: dict[int, asyncio.Future[T]] = {}
        self._token = 0
        self.loop.add_reader(fd, drain)

    def __len__(self) -> int:
        return len(self._futures)

    def next_token(self) -> int:
        """A name for the next call."""
        self._token = token = self._token + 1
        return token

    def expect(self, token: int) -> asyncio.Future[T]:
        """The future of an answer that is not there yet."""
        future = self._futures[token] = self.loop.create_future()
        return future

    def __getitem__(self, token: int) -> asyncio.Future[T]:
        return self._futures[token]

    def forget(self, token: int) -> bool:
        """Nobody waits for this answer any more; false when it had come."""
        return self._futures.pop(token, None) is not None

    def resolve(self, token: int, answer: T) -> None:
        """The answer has come."""
        future = self._futures.pop(token, None)
        if future is not None and not future.done():
            future.set_result(answer)

    def fail(self, token: int, error: BaseException) -> None:
        """An error has come."""
        future = self._futures.pop(token, None)
        if future is not None and not future.done():
            future.set_exception(error)

    def end(self, error: Callable[[], Exception]) -> None:
        """Stops listening; whoever still waits is told."""
        self.loop.remove_reader(self._fd)
        for token in list(self._futures):
            self.fail(token, error())
