"""Sync verbs of what is elsewhere, in tasks: nothing blocks, and no thread is involved."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, Protocol, TypeVar

from ..client.backend import RemoteBackend
from .bridge import here

P = ParamSpec("P")
T = TypeVar("T")


class Runner(Protocol):
    """What runs sync verbs for an event loop."""

    async def run(self, verb: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs a verb that may wait."""

    async def run_long(self, verb: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs a verb that may wait long."""


class Spawned:
    """Runs verbs in greenlets of the task that awaits them."""

    async def run(self, verb: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        # With the first connection comes what makes greenlets.
        from ..remote.greenlets import spawn

        return await spawn(verb, *args, **kwargs)

    run_long = run


SPAWNED = Spawned()


def runner_of(part: object) -> Runner:
    """What runs the verbs of a part of a backend."""
    return SPAWNED if isinstance(part, RemoteBackend) else here()
