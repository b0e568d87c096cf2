"""Calls that give the event loop back while they wait, without being coroutines.

`spawn` runs a plain function in a greenlet of the task that awaits it. What the function waits for
by `wait` is awaited by that task: the same code serves a client that blocks and one that does not.
No thread is involved, and a cancellation comes out of `wait` as it would out of an `await`.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from typing import Any, ParamSpec, TypeVar

import greenlet

P = ParamSpec("P")
T = TypeVar("T")


class Call(greenlet.greenlet):  # type: ignore[misc]
    """A function on its way, in the context of the task that awaits it."""

    def __init__(self, run: Callable[[], Any]) -> None:
        driver = greenlet.getcurrent()
        super().__init__(run, driver)
        self.gr_context = driver.gr_context


async def spawn(verb: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """The result of a function that may `wait`."""
    call = Call(lambda: verb(*args, **kwargs))
    found: Any = call.switch()
    while not call.dead:
        try:
            value = await found
        except BaseException:
            # To where the function waits, a cancellation too.
            found = call.throw(*sys.exc_info())
        else:
            found = call.switch(value)
    return found  # type: ignore[no-any-return]


def wait(awaitable: Awaitable[T]) -> T:
    """What comes of an awaitable, in a function that was spawned."""
    call = greenlet.getcurrent()
    if not isinstance(call, Call) or call.parent is None:
        raise RuntimeError("this asyncio client was called outside of a task: await its methods")
    found: T = call.parent.switch(awaitable)
    return found
