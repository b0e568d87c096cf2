"""Server settings: arguments over TOPICS_* variables over topics.toml over defaults.

Engine settings come from `topics_engine.settings`, by the same rule and from the same file.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from .. import settings as engine_settings
from ..errors import InvalidRequest

LOG_LEVELS = ("debug", "info", "warning", "error", "critical")


def _setting(default: Any, help_text: str, *, repr: bool = True) -> Any:
    return field(default=default, repr=repr, metadata={"help": help_text})


@dataclass(frozen=True, slots=True)
class Settings:
    """The server settings; each field has its default and its meaning."""

    host: str = _setting("127.0.0.1", "address to listen on")
    port: int = _setting(4000, "port to listen on; 0 picks one and prints it")
    max_body_bytes: int = _setting(64 << 20, "largest request body")
    body_timeout_ms: int = _setting(30_000, "how long a request body may take to arrive")
    header_timeout_ms: int = _setting(30_000, "how long request headers may take to arrive")
    idle_timeout_ms: int = _setting(75_000, "how long a connection is kept without a request")
    stall_timeout_ms: int = _setting(30_000, "how long a client may take nothing that is sent")
    max_streams_per_connection: int = _setting(100, "open requests of an HTTP/2 connection")
    tls_cert: str = _setting("", "certificate file; the server speaks TLS")
    tls_key: str = _setting("", "file of its key, where the certificate's does not hold it")
    shutdown_timeout_ms: int = _setting(10_000, "how long a shutdown waits for open requests")
    hot_protocol: bool = _setting(True, "serve hot requests in the native protocol")
    allow_insecure_no_auth: bool = _setting(False, "serve others without keys")
    api_keys: str = _setting("", "keys, scopes and prefixes of clients", repr=False)
    api_keys_file: str = _setting("", "file of further keys, an entry a line")
    probe_auth: bool = _setting(False, "health and readiness need a key too")
    cors_origins: str = _setting("", "origins of web pages that may read answers")
    log_level: str = _setting("warning", "messages below this level are left out")
    max_sse_connections: int = _setting(10_000, "open event streams and sockets")
    max_sse_connections_per_key: int = _setting(1000, "the same for one key")
    max_inflight_per_key: int = _setting(1000, "open requests of one key")
    max_receiving_bytes: int = _setting(256 << 20, "bytes of all bodies that are being received")
    data_dir: str = engine_settings.DATA_DIR
    engine: Mapping[str, Any] = field(default_factory=dict)


SERVER: dict[str, Any] = {f.name: f.default for f in fields(Settings) if "help" in f.metadata}
"""Server settings by name, with their defaults."""


@dataclass(frozen=True, slots=True)
class Resolved:
    """The settings of the server and of the engine, each with its source."""

    settings: Settings
    values: Mapping[str, Any]
    sources: Mapping[str, str]


def _check_sizes(server: engine_settings.Resolved) -> None:
    """Refuses limits under which no body of the permitted size could ever be received."""
    most, all_bodies = int(server["max_body_bytes"]), int(server["max_receiving_bytes"])
    if 0 < all_bodies < most:
        raise InvalidRequest(
            f"max_receiving_bytes ({server.sources['max_receiving_bytes']}) is {all_bodies} bytes, "
            f"less than max_body_bytes ({server.sources['max_body_bytes']}), which is {most} "
            "bytes: a body of that size could never be received; raise max_receiving_bytes, or "
            "lower max_body_bytes"
        )


def resolve(
    arguments: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
    file: str | os.PathLike[str] | None = None,
) -> Resolved:
    """Resolves settings from all four sources. `None` among the arguments means "not given"."""
    arguments = arguments or {}
    mine = {name: value for name, value in arguments.items() if name in SERVER}
    others = {name: value for name, value in arguments.items() if name not in SERVER}
    engine = engine_settings.resolve(others, environ, file)
    server = engine_settings.resolve(
        mine, environ, file, known=SERVER, others=engine_settings.defaults()
    )
    if server["log_level"] not in LOG_LEVELS:
        allowed = ", ".join(LOG_LEVELS)
        source = server.sources["log_level"]
        raise InvalidRequest(
            f"log_level ({source}): {server['log_level']!r} is not one of {allowed}"
        )
    if int(server["port"]) >= 1 << 16:
        raise InvalidRequest(
            f"port ({server.sources['port']}): {server['port']} is not between 0 and 65535"
        )
    _check_sizes(server)
    values: dict[str, Any] = dict(server)
    made = Settings(**values, data_dir=str(engine["data_dir"]), engine=engine.native())
    return Resolved(made, dict(server) | dict(engine), {**server.sources, **engine.sources})
