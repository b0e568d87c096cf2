"""The options of a source or sink, read once."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import urlsplit

from .errors import InvalidOption

EARLIEST, LATEST = -2, -1
"""Positions that are no seqs, as Kafka writes them."""

OnGap = Literal["fail", "log", "emit"]

KNOWN = (
    *("url", "token", "path", "retryTimeoutMs", "subscribe", "subscribePattern"),
    *("startingOffsets", "endingOffsets", "startingTimestamp", "endingTimestamp"),
    *("maxOffsetsPerTrigger", "maxBytesPerTrigger", "minPartitions", "maxRecordsPerPartition"),
    *("failOnDataLoss", "gaps", "allowMissingTopics"),
    *("includeMeta", "dataType", "consistency", "pushFilters"),
    *("topic", "writerId", "txnAppId", "txnVersion", "staleEpoch"),
)
"""Options of sources and sinks; what is one's alone, the other passes over."""
SPARKS = ("checkpointLocation", "queryName")
"""What Spark takes for itself, and hands on."""

_SPECIAL = re.compile(r"[.^$*+?{}\[\]|()\\]")


@dataclass(frozen=True, slots=True)
class Positions:
    """Where to begin or to end: one position for all topics, seqs by topic, or a time."""

    default: int
    by_topic: tuple[tuple[str, int], ...] = ()
    ts_ms: int | None = None

    def of(self, topic: str) -> int:
        return dict(self.by_topic).get(topic, self.default)


@dataclass(frozen=True, slots=True)
class Subscription:
    """Which topics: names, or a regular expression that a whole name matches."""

    names: tuple[str, ...] = ()
    pattern: str | None = None

    def matches(self, topic: str) -> bool:
        if self.pattern is None:
            return topic in self.names
        return re.fullmatch(self.pattern, topic) is not None

    @property
    def prefix(self) -> str:
        """What every name that the pattern matches begins with."""
        assert self.pattern is not None
        return literal_prefix(self.pattern)


@dataclass(frozen=True, slots=True)
class Connection:
    """Where the topics are. Its `repr` does not show the token."""

    url: str | None
    token: str | None = field(repr=False)
    path: str | None
    retry_seconds: float


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What a source is told."""

    connection: Connection
    topics: Subscription
    start: Positions
    end: Positions
    max_offsets: int | None
    max_bytes: int | None
    min_partitions: int
    partition_records: int
    on_gap: OnGap
    allow_missing: bool
    include_meta: bool
    binary: bool
    strong: bool
    push_filters: bool


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """What a sink is told."""

    connection: Connection
    topic: str | None
    writer: str | None
    app: str | None
    version: int | None
    skip_stale: bool


def refuse_unknown(options: Mapping[str, str]) -> None:
    """Refuses an option that there is not: one that is misspelt would not be missed."""
    known = {name.lower(): name for name in (*KNOWN, *SPARKS)}
    for name in options:
        if name.lower() in known:
            continue
        near = difflib.get_close_matches(name.lower(), known, n=1)
        hint = f'did you mean "{known[near[0]]}"?' if near else f"known are {', '.join(KNOWN)}"
        raise InvalidOption(f'unknown option "{name}"; {hint}')


def connection(options: Mapping[str, str]) -> Connection:
    url, path = options.get("url"), options.get("path")
    if url is None and path is None:
        raise InvalidOption(
            'neither "url" nor "path" is set: "url" names a running server (http://host:port), '
            '"path" a data directory'
        )
    if url is not None and path is not None:
        raise InvalidOption(
            '"url" and "path" exclude each other: "url" reads from a running server, "path" from a '
            "data directory without one"
        )
    seconds = _number(options, "retryTimeoutMs", 0) or 120_000
    return Connection(url and _checked_url(url), _token(options), path, seconds / 1000)


def _checked_url(url: str) -> str:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as e:
        raise InvalidOption(f'"url" {url!r} is not a URL: {e}') from e
    if parts.username is not None or parts.password is not None:
        # The value is not repeated: it holds a password.
        raise InvalidOption('"url" must not hold a user or a password: put the key into "token"')
    if parts.scheme not in ("http", "https") or not host or re.search(r"\s", url):
        raise InvalidOption(f'"url" is http://host:port or https://host:port, not {url!r}')
    if port == 0 or parts.query or parts.fragment:
        what = "port 0" if port == 0 else "a query or a fragment"
        raise InvalidOption(f'"url" {url!r} has {what}: it is http://host:port')
    return url.rstrip("/")


def _token(options: Mapping[str, str]) -> str | None:
    token = options.get("token")
    if token is not None and not re.fullmatch(r"[\x21-\x7e]+", token):
        # The value is not repeated: it is a secret.
        raise InvalidOption(
            '"token" is empty or holds characters that an HTTP header cannot carry (spaces, line '
            "ends, other than ASCII): check how it is read"
        )
    return token


def read_options(options: Mapping[str, str]) -> ReadOptions:
    """`options` ignores case, as Spark's own mapping does."""
    refuse_unknown(options)
    loss = _flag(options, "failOnDataLoss", True)
    gaps = options.get("gaps") or ("fail" if loss else "log")
    if gaps not in ("fail", "log", "emit"):
        raise InvalidOption(f'"gaps" is fail, log or emit, not {gaps!r}')
    topics = _subscription(options)
    return ReadOptions(
        connection=connection(options),
        topics=topics,
        start=_positions(options, "startingOffsets", "startingTimestamp", EARLIEST, topics),
        end=_positions(options, "endingOffsets", "endingTimestamp", LATEST, topics),
        max_offsets=_number(options, "maxOffsetsPerTrigger", 1),
        max_bytes=_number(options, "maxBytesPerTrigger", 1),
        min_partitions=_number(options, "minPartitions", 1) or 1,
        partition_records=_number(options, "maxRecordsPerPartition", 1) or 1_000_000,
        on_gap=gaps,  # type: ignore[arg-type]
        allow_missing=_flag(options, "allowMissingTopics", False),
        include_meta=_flag(options, "includeMeta", True),
        binary=_one_of(options, "dataType", ("string", "binary")) == "binary",
        strong=_one_of(options, "consistency", ("eventual", "strong")) == "strong",
        push_filters=_flag(options, "pushFilters", False),
    )


def stream_options(options: Mapping[str, str]) -> ReadOptions:
    for name in ("endingOffsets", "endingTimestamp"):
        if options.get(name) is not None:
            raise InvalidOption(f'"{name}" is for batches: a stream has no end')
    return read_options(options)


def write_options(options: Mapping[str, str]) -> WriteOptions:
    refuse_unknown(options)
    to = connection(options)
    if to.path is not None:
        raise InvalidOption('a sink needs a server: "url" instead of "path"')
    app, version = options.get("txnAppId"), _number(options, "txnVersion", 0)
    if (app is None) != (version is None):
        raise InvalidOption('"txnAppId" and "txnVersion" go together')
    stale = _one_of(options, "staleEpoch", ("fail", "skip"))
    return WriteOptions(
        to, options.get("topic"), options.get("writerId"), app, version, stale == "skip"
    )


def literal_prefix(pattern: str) -> str:
    """The characters that everything that a regular expression matches begins with."""
    out, at = "", 0
    while at < len(pattern):
        step, char = 1, pattern[at]
        if char == "\\" and at + 1 < len(pattern) and not pattern[at + 1].isalnum():
            step, char = 2, pattern[at + 1]
        elif _SPECIAL.match(char):
            # An alternative further on makes what came before optional.
            return "" if "|" in pattern[at:] else out
        if pattern[at + step : at + step + 1] in ("*", "?", "{"):
            return "" if "|" in pattern[at:] else out
        out, at = out + char, at + step
    return out


def _subscription(options: Mapping[str, str]) -> Subscription:
    named, pattern = options.get("subscribe"), options.get("subscribePattern")
    if (named is None) == (pattern is None):
        raise InvalidOption('name topics by "subscribe" or "subscribePattern", one of them')
    if pattern is not None:
        try:
            re.compile(pattern)
        except re.error as e:
            raise InvalidOption(f'"subscribePattern" {pattern!r}: {e}') from e
        return Subscription(pattern=pattern)
    assert named is not None
    names = dict.fromkeys(name.strip() for name in named.split(",") if name.strip())
    if not names:
        raise InvalidOption('"subscribe" names no topic')
    return Subscription(names=tuple(names))


def _positions(
    options: Mapping[str, str], name: str, time: str, default: int, topics: Subscription
) -> Positions:
    ts = _number(options, time, 0)
    given = options.get(name)
    if ts is not None:
        if given is not None:
            raise InvalidOption(f'"{name}" and "{time}" exclude each other')
        return Positions(default, ts_ms=ts)
    if given is None or given.lower() in ("earliest", "latest"):
        word = default if given is None else {"earliest": EARLIEST, "latest": LATEST}[given.lower()]
        return Positions(word)
    try:
        seqs = json.loads(given)
    except ValueError:
        seqs = None
    if not isinstance(seqs, dict) or not all(type(n) is int and n >= -2 for n in seqs.values()):
        raise InvalidOption(f'"{name}" is earliest, latest or {{"topic": seq}}, not {given!r}')
    for topic in seqs:
        if not topics.matches(topic):
            raise InvalidOption(
                f'"{name}" names topic {topic!r}, which is not subscribed: add it to "subscribe" '
                "or leave it out"
            )
    return Positions(default, tuple(sorted(seqs.items())))


def _number(options: Mapping[str, str], name: str, least: int) -> int | None:
    text = options.get(name)
    if text is None:
        return None
    if not text.strip().isdecimal() or int(text) < least:
        raise InvalidOption(f'"{name}" is a number of at least {least}, not {text!r}')
    return int(text)


def _flag(options: Mapping[str, str], name: str, default: bool) -> bool:
    text = options.get(name)
    if text is None:
        return default
    if text.lower() not in ("true", "false"):
        raise InvalidOption(f'"{name}" is true or false, not {text!r}')
    return text.lower() == "true"


def _one_of(options: Mapping[str, str], name: str, words: tuple[str, ...]) -> str:
    text = options.get(name, words[0]).lower()
    if text not in words:
        raise InvalidOption(f'"{name}" is one of {", ".join(words)}, not {text!r}')
    return text
