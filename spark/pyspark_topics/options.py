"""The options of a source or sink, read once."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal
from urllib.parse import unquote, urlsplit

from .bad import BadRecords
from .errors import InvalidOption
from .times import duration_of, time_of
from .typed import TypedField, typed_fields

EARLIEST, LATEST = -2, -1
"""Positions that are not seqs, with the values that Kafka uses."""

STREAM_BYTES = 256 << 20
"""The payload bytes of a stream's batch unless an option says otherwise: without a bound the first
batch of a long topic is all of it."""

OnGap = Literal["fail", "log", "emit"]
Compression = Literal["lz4", "zstd"]

KNOWN = (
    *("url", "token", "caFile", "compression", "path", "remote", "retryTimeoutMs"),
    *("subscribe", "subscribePattern"),
    *("startingOffsets", "endingOffsets", "startingTimestamp", "endingTimestamp"),
    *("maxOffsetsPerTrigger", "maxBytesPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay"),
    *("minPartitions", "maxRecordsPerPartition", "consumer"),
    *("failOnDataLoss", "gaps", "allowMissingTopics", "badRecords"),
    *("tag", "tagPrefix", "nodes"),
    *("includeMeta", "dataType", "fields", "consistency", "pushFilters"),
    *("topic", "writerId", "txnAppId", "txnVersion", "staleEpoch"),
)
"""Options of sources and sinks; each side ignores those of the other."""
SPARKS = ("checkpointLocation", "queryName")
"""Options that Spark uses itself and passes on."""

_SPECIAL = re.compile(r"[.^$*+?{}\[\]|()\\]")


@dataclass(frozen=True, slots=True)
class Positions:
    """The start or end of a read: one position for all topics, seqs by topic, or times."""

    default: int
    by_topic: tuple[tuple[str, int], ...] = ()
    ts_ms: int | None = None
    """A time for all topics."""
    ts_by_topic: tuple[tuple[str, int], ...] = ()

    def of(self, topic: str) -> int:
        return dict(self.by_topic).get(topic, self.default)

    def time_of(self, topic: str) -> int | None:
        """The time from which the topic's position is resolved, ms."""
        return dict(self.ts_by_topic).get(topic, self.ts_ms)


@dataclass(frozen=True, slots=True)
class Subscription:
    """The selected topics: names, or a regular expression that must match a whole name."""

    names: tuple[str, ...] = ()
    pattern: str | None = None

    def matches(self, topic: str) -> bool:
        if self.pattern is None:
            return topic in self.names
        return re.fullmatch(self.pattern, topic) is not None

    @property
    def prefix(self) -> str:
        """The common prefix of all names that the pattern matches."""
        assert self.pattern is not None
        return literal_prefix(self.pattern)


@dataclass(frozen=True, slots=True)
class Connection:
    """Where the topics are. Its `repr` does not show the token."""

    url: str | None
    token: str | None = field(repr=False)
    path: str | None
    retry_seconds: float
    remote: str | None = None
    """The object store that holds the cold segments of the directory `path`."""
    ca_file: str | None = None
    """The certificates that sign the server's, instead of the system's."""
    compression: Compression | None = None
    """The codec of Arrow buffers on the way from and to the server."""


@dataclass(frozen=True, slots=True)
class Selection:
    """The selected records of a range."""

    match: tuple[str, str, str] | None = None
    """`("tag", "Eq", "x")` or `("tag", "Glob", "x*")`."""
    nodes: tuple[str, ...] = ()
    """Only records of these nodes; empty: of all."""


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The options of a source."""

    connection: Connection
    topics: Subscription
    start: Positions
    end: Positions
    max_offsets: int | None
    max_bytes: int | None
    min_offsets: int | None
    max_delay: float
    """Seconds after which a batch starts with fewer than `min_offsets` rows."""
    consumer: str | None
    """The consumer that shows the stream's position."""
    min_partitions: int
    partition_records: int
    on_gap: OnGap
    bad: BadRecords
    allow_missing: bool
    include_meta: bool
    binary: bool
    fields: tuple[TypedField, ...]
    """Typed columns."""
    strong: bool
    selection: Selection
    """The records that the source has at all."""
    push_filters: bool


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """The options of a sink."""

    connection: Connection
    topic: str | None
    writer: str | None
    app: str | None
    version: int | None
    skip_stale: bool
    bad: BadRecords


def refuse_unknown(options: Mapping[str, str]) -> None:
    """Refuses an unknown option, because a misspelt one would otherwise have no effect."""
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
            '"path" a data directory or an object store'
        )
    if url is not None and path is not None and not is_prefix(path):
        raise InvalidOption(
            '"url" and "path" exclude each other: "url" reads from a running server, "path" from a '
            'data directory without one. Beside "url" it is the object store that the server '
            "ships to (s3://… or file:///…)"
        )
    remote = options.get("remote")
    if remote is not None:
        _check_remote(remote, path)
    seconds = _number(options, "retryTimeoutMs", 0) or 120_000
    return Connection(
        url and _checked_url(url),
        _token(options),
        path,
        seconds / 1000,
        remote,
        _ca_file(options, url),
        _compression(options, url),
    )


def _ca_file(options: Mapping[str, str], url: str | None) -> str | None:
    file = options.get("caFile")
    if file is not None and (url is None or not url.startswith("https://")):
        raise InvalidOption('"caFile" goes with a "url" that begins with https://')
    return file


def _compression(options: Mapping[str, str], url: str | None) -> Compression | None:
    codec = options.get("compression")
    if codec is not None and url is None:
        raise InvalidOption('"compression" goes with "url": a directory is read without a network')
    if codec not in (None, "none", "lz4", "zstd"):
        raise InvalidOption(f'"compression" is lz4, zstd or none, not {codec!r}')
    return None if codec == "none" else codec  # type: ignore[return-value]


def _check_remote(remote: str, path: str | None) -> None:
    if path is None:
        raise InvalidOption('"remote" goes with "path": a server knows its own remote')
    if is_prefix(path):
        raise InvalidOption(
            '"path" names an object store itself: leave out "remote", or let "path" be a directory'
        )
    if not remote.startswith(("s3://", "file:///")):
        raise InvalidOption(
            f'"remote" is s3://bucket/prefix or file:///directory, not {remote!r}: the remote_url '
            "of the engine that wrote the directory"
        )


def is_prefix(path: str) -> bool:
    """Whether a path is the URL of a prefix that an engine archives to, not a directory."""
    if path.startswith("s3://"):
        return True
    return path.startswith("file://") and Path(unquote(urlsplit(path).path), "HEAD").is_file()


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
    place = connection(options)
    if place.url is None and options.get("consumer") is not None:
        raise InvalidOption('"consumer" needs a server: a directory is only read')
    return ReadOptions(
        connection=place,
        topics=topics,
        start=_positions(options, "startingOffsets", "startingTimestamp", EARLIEST, topics),
        end=_positions(options, "endingOffsets", "endingTimestamp", LATEST, topics),
        max_offsets=_number(options, "maxOffsetsPerTrigger", 1),
        max_bytes=_number(options, "maxBytesPerTrigger", 1),
        min_offsets=_min_offsets(options),
        max_delay=duration_of("maxTriggerDelay", options.get("maxTriggerDelay") or "15m"),
        consumer=options.get("consumer"),
        min_partitions=_number(options, "minPartitions", 1) or 1,
        partition_records=_number(options, "maxRecordsPerPartition", 1) or 1_000_000,
        on_gap=gaps,  # type: ignore[arg-type]
        bad=_bad_records(options, place),
        allow_missing=_flag(options, "allowMissingTopics", False),
        include_meta=_flag(options, "includeMeta", True),
        binary=_one_of(options, "dataType", ("string", "binary")) == "binary",
        fields=typed_fields(options["fields"]) if options.get("fields") is not None else (),
        strong=_one_of(options, "consistency", ("eventual", "strong")) == "strong",
        selection=_selection(options),
        push_filters=_flag(options, "pushFilters", False),
    )


def stream_options(options: Mapping[str, str], max_bytes: int | None = STREAM_BYTES) -> ReadOptions:
    """`max_bytes`: of a batch, unless an option sets them."""
    for name in ("endingOffsets", "endingTimestamp"):
        if options.get(name) is not None:
            raise InvalidOption(f'"{name}" is for batches: a stream has no end')
    given = read_options(options)
    if given.push_filters:
        raise InvalidOption(
            '"pushFilters" is for batches: Spark passes no filters to a stream; select records '
            'with "tag", "tagPrefix" or "nodes"'
        )
    return given if given.max_bytes is not None else replace(given, max_bytes=max_bytes)


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
        to,
        options.get("topic"),
        options.get("writerId"),
        app,
        version,
        stale == "skip",
        _bad_records(options, to),
    )


def _min_offsets(options: Mapping[str, str]) -> int | None:
    least = _number(options, "minOffsetsPerTrigger", 1)
    most = _number(options, "maxOffsetsPerTrigger", 1)
    if least is None and options.get("maxTriggerDelay") is not None:
        raise InvalidOption('"maxTriggerDelay" has an effect only with "minOffsetsPerTrigger"')
    if least is not None and most is not None and least > most:
        raise InvalidOption(
            f'"minOffsetsPerTrigger" {least} is above "maxOffsetsPerTrigger" {most}: no batch '
            "could have as many rows"
        )
    return least


def _bad_records(options: Mapping[str, str], place: Connection) -> BadRecords:
    text = options.get("badRecords", "fail")
    kind, _, topic = text.partition(":")
    if kind in ("fail", "log") and text == kind:
        return BadRecords(kind)  # type: ignore[arg-type]
    if kind != "topic" or not topic:
        raise InvalidOption(f'"badRecords" is fail, log or topic:NAME, not {text!r}')
    if place.url is None:
        raise InvalidOption('"badRecords" topic:NAME needs a server: a directory is only read')
    return BadRecords("topic", topic)


def literal_prefix(pattern: str) -> str:
    """The prefix of every text that a regular expression matches, as far as it is literal."""
    out, at = "", 0
    while at < len(pattern):
        step, char = 1, pattern[at]
        if char == "\\" and at + 1 < len(pattern) and not pattern[at + 1].isalnum():
            step, char = 2, pattern[at + 1]
        elif _SPECIAL.match(char):
            # A later alternative makes the earlier characters optional.
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


def _selection(options: Mapping[str, str]) -> Selection:
    tag, prefix, nodes = options.get("tag"), options.get("tagPrefix"), options.get("nodes")
    if tag is not None and prefix is not None:
        raise InvalidOption('"tag" and "tagPrefix" exclude each other')
    match = None
    if tag is not None:
        if not tag:
            raise InvalidOption('"tag" is empty: leave it out to read every record')
        match = ("tag", "Eq", tag)
    if prefix is not None:
        if not prefix or "*" in prefix:
            raise InvalidOption(
                f'"tagPrefix" is text of at least one character, no "*": {prefix!r}'
            )
        match = ("tag", "Glob", prefix + "*")
    names = tuple(dict.fromkeys(n.strip() for n in (nodes or "").split(",") if n.strip()))
    if nodes is not None and not names:
        raise InvalidOption('"nodes" names no node')
    return Selection(match, tuple(sorted(names)))


def _positions(
    options: Mapping[str, str], name: str, time: str, default: int, topics: Subscription
) -> Positions:
    when, given = options.get(time), options.get(name)
    if when is not None:
        if given is not None:
            raise InvalidOption(f'"{name}" and "{time}" exclude each other')
        return _times(time, when, default, topics)
    if given is None or given.lower() in ("earliest", "latest"):
        word = default if given is None else {"earliest": EARLIEST, "latest": LATEST}[given.lower()]
        return Positions(word)
    try:
        seqs = json.loads(given)
    except ValueError:
        seqs = None
    if not isinstance(seqs, dict) or not all(type(n) is int and n >= -2 for n in seqs.values()):
        raise InvalidOption(f'"{name}" is earliest, latest or {{"topic": seq}}, not {given!r}')
    _refuse_unsubscribed(name, seqs, topics)
    return Positions(default, tuple(sorted(seqs.items())))


def _times(name: str, text: str, default: int, topics: Subscription) -> Positions:
    """A time for all topics, or JSON with one for each of some."""
    if not text.lstrip().startswith("{"):
        return Positions(default, ts_ms=time_of(name, text))
    try:
        given = json.loads(text)
    except ValueError as e:
        raise InvalidOption(f'"{name}" {text!r} is not valid JSON: {e}') from e
    _refuse_unsubscribed(name, given, topics)
    times = {topic: time_of(name, at) for topic, at in given.items()}
    return Positions(default, ts_by_topic=tuple(sorted(times.items())))


def _refuse_unsubscribed(name: str, named: Iterable[str], topics: Subscription) -> None:
    for topic in named:
        if not topics.matches(topic):
            raise InvalidOption(
                f'"{name}" names topic {topic!r}, which is not subscribed: add it to "subscribe" '
                "or leave it out"
            )


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
