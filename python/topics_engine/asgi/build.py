"""Builds an application from settings and components."""

from __future__ import annotations

import logging
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Any, cast

from .. import _core
from ..client import Database
from ..client.embedded import EmbeddedBackend
from ..errors import TopicsError
from .access import Cors, Guard, KeyGuard, LoopbackGuard, OpenGuard
from .application import App
from .keys import Keys, forget
from .lifespan import EngineLifespan, Opened
from .messages import Receive, Scope, Send
from .settings import Settings, resolve, unknown_variables

log = logging.getLogger("topics_engine.asgi")


def create_app(
    engine: Database | _core.Engine | None = None, settings: Settings | None = None
) -> App:
    """Makes an application over an open database, or over the directory that the settings name.

    Args:
        engine: a database of `te.open`, which is served but not closed (default: the application
            opens the directory of the settings).
        settings: of the server (default: those of `TOPICS_*` and `topics.toml`).

    Raises:
        InvalidRequest: a setting is unknown or has a wrong value.

    Example:
        ```python
        app = create_app(db)
        ```
    """
    return build(settings, engine=engine)


class DefaultApp:
    """The application of the settings of the process.

    Nothing is read before the first call, so that the module may be imported for other reasons.
    """

    def __init__(self) -> None:
        self._made: App | None = None

    def made(self) -> App:
        """The application; the first call reads the settings."""
        if self._made is None:
            self._made = create_app()
        return self._made

    def running(self) -> AbstractAsyncContextManager[App]:
        """`App.running` of the application."""
        return self.made().running()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            try:
                self.made()
            except (TopicsError, ValueError) as error:
                # A server takes an exception for an application without lifespan, and goes on.
                await receive()
                await send({"type": "lifespan.startup.failed", "message": str(error)})
                return
        await self.made()(scope, receive, send)


def build(settings: Settings | None = None, *, engine: Any = None, url: str = "") -> App:
    """Builds an application.

    Args:
        settings: of the server (default: those of `TOPICS_*` and `topics.toml`).
        engine: a database to serve (default: the directory of the settings).
        url: where it is served: it is written into the lock file.
    """
    if settings is None:
        settings = resolve().settings
        warn_of_unknown_variables()
    keys = Keys.parse(settings.api_keys, settings.api_keys_file)
    forget(settings.api_keys)
    if not keys and Cors(settings.cors_origins).allows_all:
        log.warning(
            "cors_origins is * and there are no API keys: every web page that a browser on this "
            "machine opens can read, write and delete; name the origins, or set TOPICS_API_KEYS"
        )
    settings = replace(settings, api_keys="")
    unsent = _core.UnsentBytes(settings.max_unsent_bytes)
    lifespan = make_lifespan(settings, engine, url, keys, unsent)
    return App(lifespan, make_guard(settings, keys), settings, unsent)


def warn_of_unknown_variables() -> None:
    """Logs a warning for each `TOPICS_*` variable that nothing reads."""
    for warning in unknown_variables():
        log.warning(warning)


def make_guard(settings: Settings, keys: Keys) -> Guard:
    """The guard for these settings."""
    if keys:
        return KeyGuard(keys, probes=settings.probe_auth)
    return (
        OpenGuard()
        if settings.allow_insecure_no_auth
        else LoopbackGuard(Cors(settings.cors_origins))
    )


def make_lifespan(
    settings: Settings, engine: Any, url: str, keys: Keys, unsent: _core.UnsentBytes
) -> EngineLifespan:
    """The object that opens and closes the engine of an application."""

    recovery = _core.Recovery()

    def open_engine() -> Opened:
        core: Any = engine
        if isinstance(engine, Database):
            core = cast("EmbeddedBackend", engine._backend).engine
        if core is None:
            given = {**settings.engine, "url": url}
            core = _core.Engine.open(settings.data_dir, given, recovery=recovery)
        http = _core.Http(
            core,
            settings.engine,
            keys.grants(),
            settings.trace_context,
            settings.backup_dir or None,
            unsent,
            settings.max_body_bytes,
        )
        return core, http

    def close_engine(core: Any) -> None:
        if engine is None:
            core.close()

    def progress() -> float:
        # An open engine has nothing to recover.
        return recovery.progress if engine is None else 1.0

    return EngineLifespan(open_engine, close_engine, version=_core.__version__, progress=progress)
