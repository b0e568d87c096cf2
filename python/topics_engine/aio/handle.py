"""Async handles: each wraps a sync handle and declares its methods from the sync ones."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
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
from ..client.closing import Handle
from ..client.show import escape
from .bridge import Bridge, current_bridge

if TYPE_CHECKING:
    from .. import _core
    from ..client.backend import Backend
    from ..client.embedded import EmbeddedBackend

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")
C = TypeVar("C", bound="Closing")
F = TypeVar("F", bound=Callable[..., Any])
AsyncMethod = Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]


class AsyncHandle(Handle, Generic[S]):
    """A handle with awaited methods around the sync handle `_sync`."""

    __slots__ = ("_sync",)

    def __init__(self, sync: S) -> None:
        self._sync = sync

    @property
    def _backend(self) -> Backend:
        return self._sync._backend  # type: ignore[attr-defined, no-any-return]

    @property
    def _engine(self) -> _core.Engine:
        """The engine of this process."""
        return cast("EmbeddedBackend", self._backend).engine

    @property
    def _is_remote(self) -> bool:
        """Whether methods wait for a server; they run in greenlets then, not on threads."""
        return self._backend.is_remote

    def _runner(self) -> Runner:
        """The runner of sync methods on the running loop. Raises if the backend is closed."""
        self._backend.check()
        return GREENLET_RUNNER if self._is_remote else current_bridge()

    def _bridge(self) -> Bridge:
        """The bridge of the running loop. Raises if the engine is closed."""
        self._backend.check()
        return current_bridge()

    def __repr__(self) -> str:
        return f"<aio {repr(self._sync).strip('<>')}>"


class ReprMixin(AsyncHandle[S]):
    """Shows a handle like its sync handle. `repr` cannot await a server, so a remote handle shows
    its name only.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        if not self._is_remote:
            return super().__repr__()
        name = getattr(self._sync, "name", None)
        named = "" if name is None else f" {name!r} of"
        return f"<aio {type(self).__name__}{named} {self._backend.path!r}>"

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
    """Declares the async method of a sync one; `kind` wraps its result."""

    @functools.wraps(verb)
    async def run(self: AsyncHandle[Any], /, *args: Any, **kwargs: Any) -> Any:
        found = await self._runner().run(verb, self._sync, *args, **kwargs)
        return found if kind is None else kind(found)

    return run


def long_async_method(verb: Callable[Concatenate[Any, P], R]) -> AsyncMethod[P, R]:
    """Declares the async method of a sync one that may take long: it gets its own thread."""

    @functools.wraps(verb)
    async def run(self: AsyncHandle[Any], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await self._runner().run_long(verb, self._sync, *args, **kwargs)

    return run


def wrapping(
    verb: Callable[Concatenate[Any, P], S], kind: Callable[[S], R]
) -> Callable[Concatenate[Any, P], R]:
    """Declares a method that does not wait; `kind` wraps its result."""

    @functools.wraps(verb)
    def make(self: AsyncHandle[Any], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return kind(verb(self._sync, *args, **kwargs))

    return make


def passthrough(verb: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[Any, P], R]:
    """Declares a method that does not wait, with the same result."""

    def same(found: R) -> R:
        return found

    return wrapping(verb, same)


def documented_by(verb: Callable[..., Any]) -> Callable[[F], F]:
    """Gives a method the name, the docstring and the signature of a sync one."""

    def declare(method: F) -> F:
        functools.update_wrapper(method, verb)
        return method

    return declare


def same_signature(
    verb: Callable[Concatenate[Any, P], Any],
    *,
    remote_too: bool = False,
) -> Callable[[Callable[..., Coroutine[Any, Any, R]]], AsyncMethod[P, R]]:
    """Declares an async method with the signature and docstring of a sync one.

    The decorated function serves an embedded engine. On a remote handle the sync method runs in a
    greenlet, unless `remote_too`.
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
    """A handle that the end of an `async with` block closes."""

    __slots__ = ()

    async def close(self) -> None:
        """Closes it. Idempotent."""
        raise NotImplementedError

    async def __aenter__(self: C) -> C:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()


T = TypeVar("T")


class Runner(Protocol):
    """Runs sync methods for an event loop."""

    async def run(self, verb: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs a method that may wait."""

    async def run_long(self, verb: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs a method that may wait long."""


class GreenletRunner:
    """Runs methods in greenlets of the awaiting task."""

    async def run(self, verb: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        # Imported here: only the extra `client` installs greenlet.
        from ..remote.greenlets import spawn

        return await spawn(verb, *args, **kwargs)

    run_long = run


GREENLET_RUNNER = GreenletRunner()


def runner_of(part: object) -> Runner:
    """The runner of a backend, or of a part of one."""
    return GREENLET_RUNNER if isinstance(part, RemoteBackend) else current_bridge()
