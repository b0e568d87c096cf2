"""Plain functions that yield to the event loop while they wait.

`spawn` runs a function in a greenlet of the task that awaits it. A `wait` inside the function
switches to the task, which awaits the awaitable. So the same code serves the sync and the asyncio
client, without threads; a cancellation is raised by `wait`, as an `await` would raise it.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from typing import Any, ParamSpec, TypeVar

import greenlet

P = ParamSpec("P")
T = TypeVar("T")


class Call(greenlet.greenlet):  # type: ignore[misc]
    """A running function, in the context of the task that awaits it."""

    def __init__(self, run: Callable[[], Any]) -> None:
        driver = greenlet.getcurrent()
        super().__init__(run, driver)
        self.gr_context = driver.gr_context


async def spawn(verb: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Runs a function that may call `wait`, and returns its result."""
    call = Call(lambda: verb(*args, **kwargs))
    found: Any = call.switch()
    while not call.dead:
        try:
            value = await found
        except BaseException:
            # Raised in the function's `wait`; a cancellation, too.
            found = call.throw(*sys.exc_info())
        else:
            found = call.switch(value)
    return found  # type: ignore[no-any-return]


def wait(awaitable: Awaitable[T]) -> T:
    """Awaits an awaitable from a spawned function."""
    call = greenlet.getcurrent()
    if not isinstance(call, Call) or call.parent is None:
        raise RuntimeError("this asyncio client was called outside of a task: await its methods")
    found: T = call.parent.switch(awaitable)
    return found
