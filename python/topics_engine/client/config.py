"""The options of a topic: names and values as Python has them, and as the engine has them.

Durations are seconds, a `timedelta` or text here, and integer milliseconds in the engine's fields,
whose names end with `_ms`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import timedelta
from typing import Any

from ..errors import Conflict, InvalidRequest
from ..names import nearest
from ..options import KINDS, SYNONYMS
from . import arguments
from .closing import Handle

DURATIONS = frozenset(name for name, kind in KINDS.items() if kind[0] == "duration")
RANGES = {"lease": (100, 86_400_000), "claim_jitter": (0, 5000), "priority": (-1000, 1000)}
"""What the engine limits values to: durations in milliseconds."""
FIXED = frozenset({"type", "durability"})
"""The options in which a topic must be as the handle that writes to it says."""


def fields(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options as the engine's fields."""
    found: dict[str, Any] = {}
    for name, value in options.items():
        if name not in KINDS:
            meant = SYNONYMS.get(name)
            hint = nearest(name, KINDS) if meant is None else f"; did you mean `{meant}`?"
            raise InvalidRequest(f"unknown option `{name}`{hint}", detail={"field": name})
        found[f"{name}_ms" if name in DURATIONS else name] = _limited(name, _value(name, value))
    return found


def _limited(name: str, value: Any) -> Any:
    """The value as the engine stores it, so that it compares equal to what was stored."""
    if value is None or name not in RANGES:
        return value
    least, most = RANGES[name]
    return min(max(value, least), most)


def _value(name: str, value: object) -> Any:
    """The value of an option, checked."""
    kind, *words = KINDS[name]
    if value is None and kind.endswith("?"):
        return None
    match kind:
        case "duration":
            return arguments.milliseconds(name, value)
        case "size":
            return arguments.size(name, value, 0)
        case "flag":
            return arguments.flag(name, value)
        case "words":
            return arguments.choice(name, value, words)
        case "name?":
            return arguments.name(name, value)
        case "integer?":
            allowed = "an integer of 32 bits or None"
            return arguments.integer(name, value, allowed, -(1 << 31), (1 << 31) - 1)
    return arguments.count(name, value, 0, arguments.MAX_INT)


def shown(config: Mapping[str, Any]) -> dict[str, Any]:
    """The engine's fields as options, with durations in seconds."""
    found: dict[str, Any] = {}
    for field, value in config.items():
        name = option_name(field)
        found[name] = value / 1000 if name in DURATIONS else value
    return found


def option_name(field: str) -> str:
    """The option of a field of the engine."""
    name = field.removesuffix("_ms")
    return name if name in DURATIONS else field


def compare(
    topic: str,
    config: Mapping[str, Any],
    options: Mapping[str, Any],
    names: Collection[str] | None = None,
) -> None:
    """Raises `Conflict` if an option, or one of these names, differs from the config of the topic.

    The message has every difference, with both values as the caller wrote them.
    """
    if "durable" in options:
        # As the engine reads it: another word for two classes, if no class is named.
        alias = {"durability": "fsync" if options["durable"] else "disk"}
        options = alias | {name: value for name, value in options.items() if name != "durable"}
    wanted = shown(fields(options))
    different = [
        name
        for name, value in wanted.items()
        if config[name] != value and (names is None or name in names)
    ]
    if not different:
        return
    texts = [
        f"{name} {_like(options[name], name, config[name])}, not {_written(options[name])}"
        for name in different
    ]
    advice = (
        "a topic keeps its type; use another name"
        if "type" in different
        else "change the topic with configure, or leave these options out"
    )
    raise Conflict(
        f"topic {topic!r} exists with {', and '.join(texts)}: {advice}",
        "topic_exists_incompatible",
        {
            "topic": topic,
            "differences": {
                name: {"actual": config[name], "wanted": wanted[name]} for name in different
            },
        },
    )


def _written(value: object) -> str:
    """The value of an option as its caller wrote it."""
    return repr(getattr(value, "name", value) if isinstance(value, Handle) else value)


def _like(written: object, name: str, value: Any) -> str:
    """The value of an option in a config, in the form in which a caller wrote another one."""
    if name not in DURATIONS:
        return repr(value)
    if isinstance(written, timedelta):
        return repr(timedelta(seconds=value))
    if isinstance(written, str):
        return repr(arguments.duration_text(value))
    return repr(int(value) if value == int(value) else value)
