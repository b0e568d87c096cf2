"""Verbs that are awaited, declared by the sync verbs whose twins they are."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from html import escape
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    ParamSpec,
    Protocol,
    TypeVar,
    cast,
    overload,
)

from ..client.backend import RemoteBackend
from .bridge import Bridge, current_bridge

if TYPE_CHECKING:
    from .. import _core

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")
C = TypeVar("C", bound="Closing")
AsyncMethod = Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]


class AsyncHandle(Generic[S]):
    """A handle whose verbs are awaited; `_sync` is the handle that says what they mean."""

    __slots__ = ("_sync",)

    def __init__(self, sync: S) -> None:
        self._sync = sync

    @property
    def _engine(self) -> _core.Engine:
        return cast("_core.Engine", self._sync._backend)  # type: ignore[attr-defined]

    @property
    def _is_remote(self) -> bool:
        """Whether verbs wait for a server: they are spawned, and no thread waits."""
        return isinstance(self._sync._backend, RemoteBackend)  # type: ignore[attr-defined]

    def _runner(self) -> Runner:
        """What runs sync verbs for the running loop, if what they stand on is open here."""
        self._engine.check()
        return SPAWNED if self._is_remote else current_bridge()

    def _bridge(self) -> Bridge:
        """The running loop's bridge, if the engine is open here."""
        self._engine.check()
        return current_bridge()

    def __repr__(self) -> str:
        return f"<aio {repr(self._sync).strip('<>')}>"


class ReprMixin(AsyncHandle[S]):
    """A handle that shows what it is of. What a server would say has to be awaited: there it shows
    its name alone.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        if not self._is_remote:
            return super().__repr__()
        name = getattr(self._sync, "name", None)
        named = "" if name is None else f" {name!r} of"
        return f"<aio {type(self).__name__}{named} {self._engine.path!r}>"

    def _repr_html_(self) -> str:
        if self._is_remote:
            return f"<b>{escape(repr(self)[1:-1])}</b>"
        shown: str = self._sync._repr_html_()  # type: ignore[attr-defined]
        return shown


@overload
def async_method(verb: Callable[Concatenate[Any, P], R]) -> AsyncMethod[P, R]: ...
@overload
def async_method(
    verb: Callable[Concatenate[Any, P], S], kind: Callable[[S], R]
) -> AsyncMethod[P, R]: ...
def async_method(
    verb: Callable[..., Any], kind: Callable[[Any], Any] | None = None
) -> AsyncMethod[..., Any]:
    """The sync verb on one of the bridge's threads; what it makes, as the async_method of that."""

    @functools.wraps(verb)
    async def run(self: AsyncHandle[Any], /, *args: Any, **kwargs: Any) -> Any:
        found = await self._runner().run(verb, self._sync, *args, **kwargs)
        return found if kind is None else kind(found)

    return run


def long_async_method(verb: Callable[Concatenate[Any, P], R]) -> AsyncMethod[P, R]:
    """The sync verb on a thread of its own: it may take long."""

    @functools.wraps(verb)
    async def run(self: AsyncHandle[Any], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await self._runner().run_long(verb, self._sync, *args, **kwargs)

    return run


def wrapping(
    verb: Callable[Concatenate[Any, P], S], kind: Callable[[S], R]
) -> Callable[Concatenate[Any, P], R]:
    """The async_method of what the sync verb makes, at once."""

    @functools.wraps(verb)
    def make(self: AsyncHandle[Any], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return kind(verb(self._sync, *args, **kwargs))

    return make


def passthrough(verb: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[Any, P], R]:
    """The sync verb itself: it waits for nothing."""

    def same(found: R) -> R:
        return found

    return wrapping(verb, same)


def same_signature(
    verb: Callable[Concatenate[Any, P], Any],
    *,
    remote_too: bool = False,
) -> Callable[[Callable[..., Coroutine[Any, Any, R]]], AsyncMethod[P, R]]:
    """Arguments and documentation are those of the sync verb. What is declared is how an engine of
    this process waits, unless `remote_too`; of a server it is the sync verb that is spawned.
    """

    def declare(run: Callable[..., Coroutine[Any, Any, R]]) -> AsyncMethod[P, R]:
        @functools.wraps(verb)
        async def either(self: AsyncHandle[Any], /, *args: Any, **kwargs: Any) -> R:
            if self._is_remote and not remote_too:
                found: R = await self._runner().run(verb, self._sync, *args, **kwargs)
                return found
            return await run(self, *args, **kwargs)

        return either

    return declare


class Closing:
    """Closed at the end of an `async with` block."""

    __slots__ = ()

    async def close(self) -> None:
        """Ends it. Idempotent."""
        raise NotImplementedError

    async def __aenter__(self: C) -> C:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()


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
    return SPAWNED if isinstance(part, RemoteBackend) else current_bridge()
