"""Server settings: arguments over TOPICS_* variables over topics.toml over defaults.

Engine settings come from `topics_engine.settings`, by the same rule and from the same file.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, cast

from .. import settings as engine_settings
from ..errors import InvalidRequest
from ..settings import DATA_DIR, Kind, Setting, Value, kind_of_number
from .proxies import TrustedProxies

LOG_LEVELS = ("debug", "info", "warning", "error", "critical")


def _setting(default: Any, summary: str, *, words: tuple[str, ...] = (), repr: bool = True) -> Any:
    """A field that is a setting. The name of one in bytes or milliseconds ends with the unit."""
    return field(default=default, repr=repr, metadata={"summary": summary, "words": words})


@dataclass(frozen=True, slots=True)
class Settings:
    """The server settings; each field has its default and its meaning."""

    host: str = _setting("127.0.0.1", "address to listen on, or `host:port` (`[::1]:4000`)")
    port: int = _setting(4000, "port to listen on; 0 picks one and prints it")
    max_body_bytes: int = _setting(
        64 << 20, "largest request body, and what a compressed one may decompress to"
    )
    body_timeout_ms: int = _setting(30_000, "how long a request body may take to arrive")
    header_timeout_ms: int = _setting(30_000, "how long request headers may take to arrive")
    idle_timeout_ms: int = _setting(75_000, "how long a connection is kept without a request")
    stall_timeout_ms: int = _setting(
        30_000, "how long a client may read none of the data sent to it"
    )
    max_streams_per_connection: int = _setting(100, "most open requests of an HTTP/2 connection")
    tls_cert: str = _setting("", "certificate file (PEM); the server then speaks TLS only")
    tls_key: str = _setting(
        "", "file of the certificate's key, where the certificate's file does not hold it"
    )
    shutdown_timeout_ms: int = _setting(10_000, "how long a shutdown waits for open requests")
    hot_protocol: bool = _setting(True, "serve hot requests in the native protocol")
    allow_insecure_no_auth: bool = _setting(False, "serve others without keys")
    trace_context: bool = _setting(
        True, "records keep the trace context of the request that wrote them"
    )
    api_keys: str = _setting("", "keys, scopes and prefixes of clients", repr=False)
    api_keys_file: str = _setting(
        "", "regular file of further keys: an entry a line, `#` begins a comment"
    )
    probe_auth: bool = _setting(False, "health and readiness need a key too")
    cors_origins: str = _setting(
        "",
        "origins of web pages that may send requests and read answers, separated by commas; "
        "`*`: every one",
    )
    log_format: str = _setting(
        "text", "`text`, or `json`: a JSON object a line", words=("text", "json")
    )
    audit_log: str = _setting(
        "", "file of administrative requests and refused keys; `-` writes them into the log"
    )
    trusted_proxies: str = _setting(
        "",
        "addresses or networks of proxies whose `X-Forwarded-For` is believed, separated by commas",
    )
    log_level: str = _setting(
        "warning",
        "messages below it are left out: `debug`, `info`, `warning`, `error`, `critical`",
        words=LOG_LEVELS,
    )
    backup_dir: str = _setting(
        "",
        "directory, or URL of a prefix of an object store, below which clients with scope `admin`"
        " may have backups made",
    )
    max_sse_connections: int = _setting(10_000, "most open event streams and sockets; 0: no limit")
    max_sse_connections_per_key: int = _setting(
        1000, "most open event streams and sockets of one key; 0: no limit"
    )
    max_inflight_per_key: int = _setting(1000, "most open requests of one key; 0: no limit")
    max_receiving_bytes: int = _setting(
        256 << 20,
        "most bytes of all request bodies that are being received, at least `max_body_bytes`;"
        " 0: no limit",
    )
    max_unsent_bytes: int = _setting(
        256 << 20,
        "most bytes of all answers and events that clients have not taken yet; 0: no limit",
    )
    data_dir: str = str(DATA_DIR.default)
    engine: Mapping[str, Any] = field(default_factory=dict)


def _kind(name: str, default: object, words: tuple[str, ...]) -> Kind:
    if isinstance(default, bool):
        return "flag"
    if isinstance(default, int):
        return kind_of_number(name)
    return "words" if words else "text"


SERVER: dict[str, Setting] = {
    f.name: Setting(
        f.name,
        _kind(f.name, f.default, f.metadata["words"]),
        cast("Value", f.default),
        f.metadata["summary"],
        f.metadata["words"],
    )
    for f in fields(Settings)
    if "summary" in f.metadata
}
"""The settings of a server, by name."""


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
        mine, environ, file, known=SERVER, others=engine_settings.engine_settings()
    )
    _check_sizes(server)
    TrustedProxies(str(server["trusted_proxies"]))
    values: dict[str, Any] = dict(server)
    sources = dict(server.sources)
    _split_host(values, sources)
    if int(values["port"]) >= 1 << 16:
        raise InvalidRequest(f"port ({sources['port']}): {values['port']} is not in 0 to 65535")
    made = Settings(**values, data_dir=str(engine["data_dir"]), engine=engine.native())
    return Resolved(made, values | dict(engine), {**sources, **engine.sources})


_ADDRESS = re.compile(r"(?:\[(?P<v6>[^\[\]]+)\]|(?P<name>[^:\[\]]+))(?::(?P<port>[0-9]{1,5}))?")


def _split_host(values: dict[str, Any], sources: dict[str, str]) -> None:
    """Splits a host that has a port. The port of the source with the higher rank counts; two
    different ports of the same rank are an error.
    """
    host, source = str(values["host"]), sources["host"]
    if host.count(":") > 1 and not host.startswith("["):
        # An IPv6 address without brackets has no port.
        return
    found = _ADDRESS.fullmatch(host)
    if found is None:
        raise InvalidRequest(
            f"host ({source}): {host!r} is not an address, host:port or [IPv6]:port"
        )
    values["host"] = found["v6"] or found["name"]
    if found["port"] is None:
        return
    mine, other = _rank(source), _rank(sources["port"])
    if mine == other and int(found["port"]) != values["port"]:
        raise InvalidRequest(
            f"host ({source}) has port {found['port']}, and port ({sources['port']}) is "
            f"{values['port']}: name it once"
        )
    if mine > other:
        values["port"], sources["port"] = int(found["port"]), source


def _rank(source: str) -> int:
    """The rank of a source of settings; a higher one wins."""
    if source in ("default", "argument"):
        return 0 if source == "default" else 3
    return 2 if source.startswith("environment ") else 1


OTHER_VARIABLES = ("TOPICS_API_KEY", "TOPICS_CONFIG", "TOPICS_CONTEXT", "TOPICS_URL")
"""Variables that are not settings: of clients, and of the settings file."""


def unknown_variables(environ: Mapping[str, str] | None = None) -> list[str]:
    """A warning for each `TOPICS_*` variable that nothing reads."""
    environ = os.environ if environ is None else environ
    settings = SERVER | engine_settings.engine_settings()
    known = {setting.variable for setting in settings.values()}
    known.update(OTHER_VARIABLES)
    warnings = []
    for name in sorted(n for n in environ if n.startswith("TOPICS_") and n not in known):
        near = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.8)
        hint = f"did you mean {near[0]}?" if near else "`topics config` prints those that exist"
        warnings.append(f"the variable {name} is unknown and has no effect; {hint}")
    return warnings
