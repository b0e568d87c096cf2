"""Futures for the answers of the native core.

The core signals answers on one file descriptor per loop. Each call has a token; an answer to a
token that is no longer awaited is dropped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Pending(Generic[T]):
    """The awaited answers of one event loop."""

    def __init__(self, fd: int, drain: Callable[[], None]) -> None:
        self.loop = asyncio.get_running_loop()
        self._fd = fd
        self._futures: dict[int, asyncio.Future[T]] = {}
        self._token = 0
        self.loop.add_reader(fd, drain)

    def __len__(self) -> int:
        return len(self._futures)

    def next_token(self) -> int:
        """A new token."""
        self._token = token = self._token + 1
        return token

    def expect(self, token: int) -> asyncio.Future[T]:
        """Creates the future of an answer."""
        future = self._futures[token] = self.loop.create_future()
        return future

    def __getitem__(self, token: int) -> asyncio.Future[T]:
        return self._futures[token]

    def forget(self, token: int) -> bool:
        """Stops waiting for an answer; returns False if it has arrived."""
        return self._futures.pop(token, None) is not None

    def resolve(self, token: int, answer: T) -> None:
        """Sets the answer."""
        future = self._futures.pop(token, None)
        if future is not None and not future.done():
            future.set_result(answer)

    def fail(self, token: int, error: BaseException) -> None:
        """Sets an error as the answer."""
        future = self._futures.pop(token, None)
        if future is not None and not future.done():
            future.set_exception(error)

    def end(self, error: Callable[[], Exception]) -> None:
        """Stops listening, and fails every awaited answer."""
        self.loop.remove_reader(self._fd)
        for token in list(self._futures):
            self.fail(token, error())
