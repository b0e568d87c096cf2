"""Engine settings: arguments over `TOPICS_*` variables over `topics.toml` over defaults.

The native module defines names and defaults; this module finds the values.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from typing import Any, Final, Literal

from . import _core
from .errors import InvalidRequest
from .frozen import Frozen, frozen
from .names import nearest
from .options import KINDS as TOPIC_OPTIONS
from .options import SERVER
from .sizes import parse_size

Value = str | int | bool

FILE = "topics.toml"
"""The settings file in the working directory, unless `TOPICS_CONFIG` names another one."""

REMOTE_SECONDS = 2.0
"""How long the file system of an object store may take to resolve its path."""

Kind = Literal["count", "size", "duration", "window", "flag", "text", "words", "names"]
"""What a setting is: a number, bytes, milliseconds, milliseconds or `never`, true or false, text,
one of several words; or true, false, or a list of names and prefixes.
"""


@frozen()
class Setting(Frozen):
    """A setting: its default, and what it is for; `words` are the values of a kind `words`."""

    name: str
    kind: Kind
    default: Value
    summary: str
    words: tuple[str, ...] = ()

    @property
    def variable(self) -> str:
        """The environment variable."""
        return variable(self.name)


NEVER = "never"
"""The word for a window without an end."""


def kind_of_number(name: str) -> Kind:
    """What a number is whose name ends with its unit."""
    units: dict[str, Kind] = {"bytes": "size", "ms": "duration"}
    return units.get(name.rpartition("_")[2], "count")


def variable(name: str) -> str:
    """The environment variable of a setting."""
    return f"TOPICS_{name.upper()}"


DATA_DIR = Setting("data_dir", "text", "./topics-data", "the data directory")


@frozen(unhashed=("values_by_name", "sources"))
class Resolved(Frozen, Mapping[str, Value]):
    """Settings by name, each with its source."""

    values_by_name: Mapping[str, Value]
    sources: Mapping[str, str]

    def __getitem__(self, name: str) -> Value:
        return self.values_by_name[name]

    def __iter__(self) -> Any:
        return iter(self.values_by_name)

    def __len__(self) -> int:
        return len(self.values_by_name)

    def native(self) -> dict[str, Value]:
        """The settings for the native module: all except defaults, which it knows."""
        return {
            name: value
            for name, value in self.values_by_name.items()
            if name != "data_dir" and self.sources[name] != "default"
        }


def engine_settings() -> dict[str, Setting]:
    """The settings of an engine, by name."""
    found = [
        Setting(name, kind, default, summary, tuple(words))
        for name, kind, words, default, summary in _core.settings()
    ]
    return {setting.name: setting for setting in (DATA_DIR, *found)}


def resolve(
    arguments: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
    file: str | os.PathLike[str] | None = None,
    *,
    known: Mapping[str, Setting] | None = None,
    others: Collection[str] = SERVER,
) -> Resolved:
    """Resolves settings from all four sources. `None` among the arguments means "not given".

    Args:
        arguments: settings by name.
        environ: environment variables (default: those of the process).
        file: the settings file (default: `TOPICS_CONFIG`, or `topics.toml` if it exists).
        known: the settings (default: those of the engine).
        others: names in the file that another component reads.

    Raises:
        InvalidRequest: a name is unknown or a value is wrong.
    """
    environ = os.environ if environ is None else environ
    known = engine_settings() if known is None else known
    given = {name: value for name, value in (arguments or {}).items() if value is not None}
    _refuse_unknown(given, known, (), "arguments")
    path = os.fspath(environ.get("TOPICS_CONFIG", FILE) if file is None else file)
    from_file = _read(path, required=file is not None or "TOPICS_CONFIG" in environ)
    _refuse_unknown(from_file, known, others, path)
    values: dict[str, Value] = {}
    sources: dict[str, str] = {}
    for name, setting in known.items():
        if name in given:
            raw, source = given[name], "argument"
        elif setting.variable in environ:
            raw, source = environ[setting.variable], f"environment {setting.variable}"
        elif name in from_file:
            raw, source = from_file[name], path
        else:
            raw, source = setting.default, "default"
        values[name] = _convert(raw, setting, source)
        sources[name] = source
    resolved = Resolved(values, sources)
    if "remote_url" in known:
        _check_remote(resolved)
    return resolved


def _check_remote(settings: Resolved) -> None:
    """Refuses an object store in the data directory: the engine's own files are there."""
    scheme, _, rest = str(settings["remote_url"]).partition("://")
    if scheme != "file":
        return
    from urllib.parse import unquote_to_bytes

    folder = os.fsdecode(unquote_to_bytes(rest.removeprefix("localhost")))
    if not folder.startswith("/") or "\0" in folder:
        # The engine refuses it.
        return
    folder, data = _real_path(folder), os.path.realpath(str(settings["data_dir"]))
    if os.path.commonpath((folder, data)) == data:
        source = settings.sources["remote_url"]
        message = f"remote_url ({source}): {folder} is in the data directory {data}; name another"
        raise InvalidRequest(message, detail={"field": "remote_url"})


def _real_path(folder: str) -> str:
    """The path without symbolic links; as it is, if its file system does not answer."""
    from threading import Thread

    found: list[str] = []
    thread = Thread(target=lambda: found.append(os.path.realpath(folder)), daemon=True)
    thread.start()
    thread.join(REMOTE_SECONDS)
    return found[0] if found else os.path.normpath(folder)


def _refuse_unknown(
    given: Mapping[str, Any], known: Collection[str], others: Collection[str], where: str
) -> None:
    for name in given:
        if name not in known and name not in others:
            hint = nearest(name, [*known, *others])
            if name in TOPIC_OPTIONS:
                hint = f"; it is an option of a topic: db.topic(name, {name}=…)"
            message = f"{where}: unknown setting `{name}`{hint}"
            raise InvalidRequest(message, detail={"field": name})


def read_text(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read()


def _read(path: str, required: bool) -> dict[str, Any]:
    if not required and not os.path.exists(path):
        return {}
    # Imported here: most programs have no such file.
    import tomllib

    try:
        return tomllib.loads(read_text(path))
    except FileNotFoundError:
        if required:
            raise InvalidRequest(f"{path}: the settings file does not exist") from None
        return {}
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"{path}: {error}") from error


def _convert(raw: Any, setting: Setting, source: str) -> Value:
    kind = setting.kind
    if kind == "flag":
        words = {"1": True, "true": True, "0": False, "false": False}
        if isinstance(raw, bool):
            return raw
        if isinstance(raw, str) and raw.lower() in words:
            return words[raw.lower()]
    elif kind == "window" and raw == NEVER:
        return NEVER
    elif kind in ("count", "size", "duration", "window"):
        if isinstance(raw, str) and raw.isascii() and raw.isdigit():
            return int(raw)
        if isinstance(raw, int) and not isinstance(raw, bool) and raw >= 0:
            return raw
        if kind == "size" and isinstance(raw, str) and (size := parse_size(raw)) is not None:
            return size
    elif kind == "names" and isinstance(raw, bool):
        return "true" if raw else "false"
    elif kind == "names" and isinstance(raw, list | tuple):
        return ",".join(map(str, raw))
    elif isinstance(raw, str) and (kind != "words" or raw in setting.words):
        return raw
    allowed = f"one of {', '.join(setting.words)}" if kind == "words" else ALLOWED[kind]
    raise InvalidRequest(f"{setting.name} ({source}): {raw!r} is not {allowed}")


ALLOWED: Final[Mapping[Kind, str]] = {
    "count": "a valid int: at least 0",
    "size": "a size: bytes, or text like 64MiB or 1GB",
    "duration": "a valid int: milliseconds, at least 0",
    "window": f"a valid int: milliseconds, at least 0; or {NEVER}",
    "flag": "a valid bool: true or false",
    "text": "a valid str",
    "names": "true, false, or a list of names and of prefixes with *",
}
"""What the values of a kind are."""
