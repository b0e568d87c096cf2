"""Checks of the arguments of public methods, made once for all four clients.

Each function takes the name of an argument and its value, and returns the value that a backend
takes, or raises `InvalidRequest`, which names the argument, the value and what is allowed.
"""

from __future__ import annotations

import math
import operator
import os
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any, Final, Literal, NoReturn, TypeAlias, TypeVar, cast

from ..errors import InvalidRequest
from ..sizes import parse_size
from .closing import Handle


class Start(Enum):
    """Where a read may begin, besides after a seq."""

    EARLIEST = "earliest"
    LATEST = "latest"

    def __repr__(self) -> str:
        return self.name


EARLIEST: Final = Start.EARLIEST
"""The first record that is kept; no gap is reported for older ones."""
LATEST: Final = Start.LATEST
"""The head: only records that are written from now on."""
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

Duration: TypeAlias = timedelta | float | str
"""A `timedelta`, seconds, or text: `"250ms"`, `"90s"`, `"5m"`, `"1h"`, `"7d"`."""
Size: TypeAlias = int | str
"""Bytes, or text: `"64MiB"`, `"1GB"`."""
Time: TypeAlias = datetime | str | int
"""An aware `datetime`, ISO text with an offset, or milliseconds since the Unix epoch."""
Since: TypeAlias = Time | timedelta
"""A time, or how long ago it was: a `timedelta` or text like `"1h"`."""
Position: TypeAlias = int | Start | Literal["earliest", "latest"]
"""A seq, or one end of the topic."""

MAX_INT = (1 << 53) - 1
MAX_U32 = (1 << 32) - 1
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,254}")
DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|w)")
UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
MAX_NODE_BYTES = 128
MAX_KEY_BYTES = 256

T = TypeVar("T", bound=str)
R = TypeVar("R")


def refuse(name: str, allowed: str, value: object) -> NoReturn:
    """Raises the error of a wrong argument."""
    shown = repr(value)
    if len(shown) > 100:
        shown = shown[:99] + "…"
    raise InvalidRequest(f"{name} must be {allowed}, not {shown}", detail={"field": name})


def integer(
    name: str, value: object, allowed: str, least: int = 0, most: int | None = MAX_INT
) -> int:
    """An integer in a range. Integers of numpy and pandas are integers, too; booleans are not."""
    if isinstance(value, bool):
        refuse(name, allowed, value)
    try:
        found = operator.index(cast("Any", value))
    except TypeError:
        refuse(name, allowed, value)
    if found < least or (most is not None and found > most):
        refuse(name, allowed, value)
    return found


def seq(name: str, value: object) -> int:
    """A seq, or 0."""
    return integer(name, value, "a seq (an integer from 0 to 2^53 - 1)")


def optional_seq(name: str, value: object) -> int | None:
    """A seq, 0 or `None`."""
    return None if value is None else seq(name, value)


def listed(name: str, allowed: str, value: object) -> Iterable[object]:
    """Several values; text and bytes are one value."""
    if isinstance(value, str | bytes | Handle) or not isinstance(value, Iterable):
        refuse(name, allowed, value)
    return value


def not_empty(records: list[R]) -> list[R]:
    """The records of a write."""
    if not records:
        raise InvalidRequest("a write needs at least one record", detail={"field": "records"})
    return records


def seqs(name: str, value: object) -> list[int]:
    """A list of seqs."""
    items = listed(name, "a list of seqs", value)
    return [seq(f"{name}[{index}]", item) for index, item in enumerate(items)]


def one_or_more_seqs(name: str, value: object) -> list[int]:
    """A seq, or a list of seqs."""
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        return [seq(name, value)]
    return seqs(name, value)


def count(name: str, value: object, least: int = 1, most: int = MAX_U32) -> int:
    """A number of things."""
    return integer(name, value, f"an integer from {least} to {most}", least, most)


def size(name: str, value: object, least: int = 1, most: int = MAX_INT) -> int:
    """A number of bytes."""
    found = parse_size(value) if isinstance(value, str) else value
    allowed = f"a size from {least} to {most} bytes (an integer, or text like '64MiB' or '1GB')"
    if found is None:
        refuse(name, allowed, value)
    return integer(name, found, allowed, least, most)


def optional_count(name: str, value: object, least: int = 1) -> int | None:
    """A number of things, or `None`."""
    return None if value is None else count(name, value, least)


def position(name: str, value: object) -> int | Start:
    """Where to begin: a seq, or one end of the topic."""
    if isinstance(value, Start):
        return value
    if value == "earliest" or value == "latest":
        return Start(value)
    return integer(name, value, "a seq (an integer from 0 to 2^53 - 1), te.EARLIEST or te.LATEST")


def beginning(name: str, value: object) -> int | str:
    """Where a range begins, as requests have it: a seq, or the earliest record."""
    if value is Start.EARLIEST or value == "earliest":
        return "earliest"
    return integer(name, value, "a seq (an integer from 0 to 2^53 - 1) or te.EARLIEST")


def end(name: str, value: object) -> Start:
    """One end of a topic."""
    if isinstance(value, Start):
        return value
    if value == "earliest" or value == "latest":
        return Start(value)
    refuse(name, "te.EARLIEST or te.LATEST", value)


def path(name: str, value: object) -> str:
    """A path of the file system."""
    if not isinstance(value, str | os.PathLike):
        refuse(name, "a path (text or os.PathLike)", value)
    found = text(name, os.fspath(value))
    if "\0" in found:
        refuse(name, "a path without null characters", value)
    return found


def flag(name: str, value: object) -> bool:
    """A boolean."""
    if not isinstance(value, bool):
        refuse(name, "True or False", value)
    return value


def choice(name: str, value: object, allowed: Sequence[T]) -> T:
    """One of some words."""
    if not isinstance(value, str) or value not in allowed:
        *most, last = map(repr, allowed)
        refuse(name, f"{', '.join(most)} or {last}", value)
    return cast("T", value)


def text(name: str, value: object) -> str:
    """Text. Its length is checked by the engine, whose settings limit it."""
    if not isinstance(value, str):
        refuse(name, "text", value)
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            refuse(name, "text without lone surrogates", value)
    return value


def bounded(name: str, value: object, most: int) -> str:
    """Text of 1 to `most` bytes of UTF-8."""
    found = text(name, value)
    if not 1 <= len(found.encode()) <= most:
        refuse(name, f"text of 1 to {most} bytes", value)
    return found


def optional_text(name: str, value: object) -> str | None:
    """Text, or `None`."""
    return None if value is None else text(name, value)


def idempotency_key(value: object) -> str | None:
    """An idempotency key."""
    if value is None:
        return None
    return bounded("idempotency_key", value, MAX_KEY_BYTES)


def tag_filter(value: object) -> str | None:
    """A tag, or the beginning of tags and a `*`."""
    found = optional_text("tag", value)
    if found is not None and "*" in found[:-1]:
        refuse("tag", "a tag, or a prefix and one `*` at the end", value)
    return found


def nodes(value: object, name: str = "exclude_nodes") -> tuple[str, ...]:
    """Nodes: one, or several."""
    if value is None:
        return ()
    if isinstance(value, str):
        return (text(name, value),)
    items = listed(name, "a node or a list of nodes", value)
    return tuple(text(f"{name}[{index}]", node) for index, node in enumerate(items))


def texts(name: str, value: object) -> list[str]:
    """A list of text."""
    items = listed(name, "a list of text", value)
    return [text(f"{name}[{index}]", item) for index, item in enumerate(items)]


def name(kind: str, value: object) -> str:
    """The name of a topic, consumer, router or transaction writer; a handle has its name."""
    if isinstance(value, Handle):
        value = getattr(value, "name", value)
    if not isinstance(value, str) or NAME.fullmatch(value) is None:
        refuse(
            kind,
            "a name (1 to 255 ASCII letters, digits, `.`, `_`, `:` and `-`; "
            "the first is a letter or a digit)",
            value,
        )
    return value


def router_name(value: object) -> str:
    """The name of a router: as that of a topic, and it may also hold `>`, as in `orders->audit`."""
    if isinstance(value, str) and NAME.fullmatch(value[:1] + value[1:].replace(">", "-")):
        return value
    return name("router", value)


def is_name(value: str) -> bool:
    """Whether text is a name."""
    return NAME.fullmatch(value) is not None


def pattern(kind: str, value: object) -> str:
    """The name or a handle of a topic, or a pattern of names: a prefix and a `*`."""
    if isinstance(value, str) and value.endswith("*"):
        prefix = value[:-1]
        if not prefix or NAME.fullmatch(prefix) is not None:
            return value
        refuse(kind, "a name, or a prefix of names and one `*` at the end", value)
    return name(kind, value)


def worker(value: object) -> str:
    """The name of a worker."""
    return bounded("worker", value, MAX_NODE_BYTES)


def meta(name: str, value: object) -> Mapping[str, str]:
    """Headers of a record."""
    if not isinstance(value, Mapping):
        refuse(name, "a mapping of text to text", value)
    for key, item in value.items():
        if not isinstance(key, str):
            refuse(name, "a mapping of text to text", value)
        if key.startswith(("$", "_topics_")):
            message = f"{name} has the reserved key {key!r}; keys must not begin with $ or _topics_"
            raise InvalidRequest(message, detail={"field": name})
        if not isinstance(item, str):
            refuse(f"{name}[{key!r}]", "text", item)
    return value


def seconds(name: str, value: object, least: float = 0.0) -> float:
    """A duration in seconds."""
    allowed = "a duration (seconds, a timedelta, or text like '90s', '5m', '1h', '7d')"
    if isinstance(value, timedelta):
        found = value.total_seconds()
    elif isinstance(value, str):
        parts = DURATION.fullmatch(value.strip())
        if parts is None:
            refuse(name, allowed, value)
        found = float(parts[1]) * UNITS[parts[2]]
    elif isinstance(value, bool):
        refuse(name, allowed, value)
    else:
        try:
            found = float(cast("Any", value))
        except (TypeError, ValueError):
            refuse(name, allowed, value)
    if not least <= found <= MAX_INT / 1000:
        allowed = f"{allowed}, at least {least:g} s" if least else f"{allowed}, not negative"
        refuse(name, allowed, value)
    return found


def duration_text(seconds: float) -> str:
    """Seconds as text, in the largest unit of which they are a whole number."""
    ms = round(seconds * 1000)
    for unit in ("d", "h", "m", "s"):
        number, rest = divmod(ms, round(UNITS[unit] * 1000))
        if number and not rest:
            return f"{number}{unit}"
    return f"{ms}ms"


def optional_seconds(name: str, value: object) -> float | None:
    """A duration in seconds, or `None`."""
    return None if value is None else seconds(name, value)


def milliseconds(name: str, value: object) -> int:
    """A duration in milliseconds, rounded up, so that a short one is not none."""
    if value == 0 and not isinstance(value, bool):
        return 0
    return math.ceil(round(seconds(name, value) * 1000, 3))


def optional_milliseconds(name: str, value: object) -> int | None:
    """A duration in milliseconds, or `None`."""
    return None if value is None else milliseconds(name, value)


def time_of(ms: int) -> datetime:
    """The time of milliseconds since the Unix epoch."""
    return EPOCH + timedelta(0, 0, 0, ms)


def optional_time_of(ms: int | None) -> datetime | None:
    """The time of milliseconds since the Unix epoch, or `None`."""
    return None if ms is None else time_of(ms)


TIME: Final = "a time (an aware datetime, ISO text with an offset, or epoch milliseconds)"
TIME_OR_AGE: Final = f"{TIME} or an age (90s, 5m, 1h, 7d)"


def epoch_ms(name: str, value: object, allowed: str = TIME) -> int:
    """A time in milliseconds since the Unix epoch."""
    found = value
    if isinstance(found, str):
        try:
            found = datetime.fromisoformat(found)
        except ValueError:
            refuse(name, allowed, value)
    if not isinstance(found, datetime):
        return integer(name, found, allowed)
    if found.utcoffset() is None:
        if isinstance(value, str):
            allowed += f": add the offset, for example {found.isoformat()}+00:00 for UTC"
        else:
            allowed += ": give the datetime a tzinfo, for example datetime.UTC"
        refuse(name, allowed, value)
    return integer(name, (found - EPOCH) // timedelta(milliseconds=1), allowed)


def optional_epoch_ms(name: str, value: object) -> int | None:
    """A time in milliseconds since the Unix epoch, or `None`."""
    return None if value is None else epoch_ms(name, value)


def since_ms(name: str, value: object) -> int:
    """A time, or how long ago it was, in milliseconds since the Unix epoch."""
    is_age = isinstance(value, timedelta) or (
        isinstance(value, str) and DURATION.fullmatch(value.strip()) is not None
    )
    if is_age:
        return max(0, int(time.time() * 1000) - milliseconds(name, value))
    return epoch_ms(name, value, TIME_OR_AGE)
