"""Settings of the server: arguments over TOPICS_* over topics.toml over defaults.

Settings are data. What they configure is passed in beside them, never looked up from here.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any


class SettingError(ValueError):
    """A setting cannot be understood; names it and where it came from."""


def _setting(default: Any, variable: str, help_text: str) -> Any:
    return field(default=default, metadata={"variable": variable, "help": help_text})


@dataclass(frozen=True, slots=True)
class Settings:
    """Every field states its default, its variable and what it means."""

    host: str = _setting("127.0.0.1", "TOPICS_HOST", "address to listen on")
    port: int = _setting(4000, "TOPICS_PORT", "port to listen on; 0 picks one and prints it")
    data_dir: str = _setting("./topics-data", "TOPICS_DATA_DIR", "the data directory")
    max_body_bytes: int = _setting(64 << 20, "TOPICS_MAX_BODY_BYTES", "largest request body")
    body_timeout_ms: int = _setting(
        30_000, "TOPICS_BODY_TIMEOUT_MS", "how long a request body may take to arrive"
    )
    shutdown_timeout_ms: int = _setting(
        10_000, "TOPICS_SHUTDOWN_TIMEOUT_MS", "how long a shutdown waits for open requests"
    )
    allow_insecure_no_auth: bool = _setting(
        False, "TOPICS_ALLOW_INSECURE_NO_AUTH", "serve others without keys"
    )
    api_keys: str = _setting("", "TOPICS_API_KEYS", "keys, scopes and prefixes of clients")


@dataclass(frozen=True, slots=True)
class Resolved:
    """Settings, and for each field where its value came from."""

    settings: Settings
    sources: Mapping[str, str]


def resolve(
    arguments: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
    file: Path | None = None,
) -> Resolved:
    """Settings from all four places. `None` among the arguments means "not given"."""
    environ = os.environ if environ is None else environ
    if file is None:
        file = Path(environ.get("TOPICS_CONFIG", "topics.toml"))
    arguments = arguments or {}
    from_file = _read(file)
    unknown = set(from_file) - {f.name for f in fields(Settings)}
    if unknown:
        raise SettingError(f"{file}: unknown settings: {', '.join(sorted(unknown))}")
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for item in fields(Settings):
        variable = item.metadata["variable"]
        if arguments.get(item.name) is not None:
            given, source = arguments[item.name], "argument"
        elif variable in environ:
            given, source = environ[variable], f"environment {variable}"
        elif item.name in from_file:
            given, source = from_file[item.name], str(file)
        else:
            given, source = item.default, "default"
        values[item.name] = _convert(given, type(item.default), item.name, source)
        sources[item.name] = source
    return Resolved(Settings(**values), sources)


def _read(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingError(f"{file}: {error}") from error


def _convert(given: Any, kind: type, name: str, source: str) -> Any:
    if kind is bool and isinstance(given, str):
        words = {"1": True, "true": True, "0": False, "false": False, "": False}
        if given.lower() in words:
            return words[given.lower()]
    elif kind is int and isinstance(given, int | str) and not isinstance(given, bool):
        try:
            number = int(given)
        except ValueError:
            number = -1
        if number >= 0 and (name != "port" or number < 65536):
            return number
    elif isinstance(given, kind):
        return given
    raise SettingError(f"{name} ({source}): {given!r} is not a valid {kind.__name__}")
