"""The values that calls take and return. All are frozen."""

from __future__ import annotations

import builtins
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal

from . import config
from .arguments import EPOCH, Duration, Time

Durability = Literal["ephemeral", "memory", "disk", "fsync"]


@dataclass(frozen=True, slots=True)
class NewRecord:
    """A record to append with options of its own, or with a list as its payload."""

    data: Any
    tag: str | None = None
    origin: str | None = None
    """The node that the record comes from."""
    meta: Mapping[str, str] | None = None
    ttl: Duration = 0
    """How long the record is kept; 0 is for ever."""
    lane: int | None = None
    """Of a job: 0 to 9 (default: 5); lower lanes are claimed first."""
    group: str | None = None
    """Of a job: at most one job of a group is leased at a time, in seq order."""
    delay: Duration = 0
    deliver_at: Time | None = None
    """Of a job: no claim gets it before the delay has passed, or before `deliver_at`."""


class _Decoded:
    """The place of the decoded payload, which is no field: it takes no part in comparisons."""

    __slots__ = ("_data",)
    _data: Any


@dataclass(frozen=True, slots=True, repr=False)
class Record(_Decoded):
    """A record as it was committed. `data` is decoded at the first access."""

    topic: str
    seq: int
    ts: int
    """When it was committed, in milliseconds since the Unix epoch."""
    origin: str | None
    """The node that it comes from."""
    tag: str | None
    meta: Mapping[str, str] | None = field(hash=False)
    stored: bytes
    """The bytes of the payload: JSON text, or raw bytes if `binary`."""
    binary: bool

    @property
    def data(self) -> Any:
        """The payload: `bytes` if it was written as bytes, else the decoded JSON."""
        if self.binary:
            return self.stored
        try:
            return self._data
        except AttributeError:
            data = json.loads(self.stored)
            object.__setattr__(self, "_data", data)
            return data

    @property
    def time(self) -> datetime:
        """When it was committed."""
        return EPOCH + timedelta(milliseconds=self.ts)

    @property
    def raw(self) -> memoryview:
        """The stored bytes, read-only. Valid after close, deletion and eviction."""
        return memoryview(self.stored)

    def _repr_html_(self) -> str:
        from .show import items_html

        return items_html(f"Record of {self.topic!r}", [self])

    def __repr__(self) -> str:
        shown = repr(self.stored) if self.binary else self.stored.decode()
        if len(shown) > 80:
            shown = shown[:79] + "…"
        tag = f", tag={self.tag!r}" if self.tag is not None else ""
        return f"Record({self.topic!r}, seq={self.seq}{tag}, data={shown})"


@dataclass(frozen=True, slots=True)
class Gap:
    """Records `first` to `last` of a topic were lost. The range is exact."""

    topic: str
    first: int
    last: int
    reason: str
    missed_estimate: int = 0


@dataclass(frozen=True, slots=True)
class CaughtUp:
    """Everything of the topic up to `seq` was delivered; what follows is delivered as it is
    written.
    """

    topic: str
    seq: int


@dataclass(frozen=True, slots=True)
class TopicDeleted:
    """The topic was deleted. A new one of its name joins the watch from its first record."""

    topic: str


@dataclass(frozen=True, slots=True)
class Ack:
    """The answer to a write."""

    topic_id: int
    first_seq: int
    last_seq: int
    head_seq: int
    count: int
    created: bool
    deduped: bool
    durability: Durability


@dataclass(frozen=True, slots=True)
class Deleted:
    """The answer to a delete: how many records were removed, and the topic afterwards."""

    deleted: int
    earliest_seq: int
    head_seq: int
    count: int
    bytes: int


@dataclass(frozen=True, slots=True)
class TopicState:
    """The state of a topic at one moment."""

    topic: str
    topic_id: int
    epoch: int
    type: Literal["log", "queue"]
    head_seq: int
    earliest_seq: int
    evict_floor: int
    next_seq: int
    count: int
    bytes: int
    gaps: tuple[Gap, ...]
    config: Mapping[str, Any] = field(hash=False)
    """The options, by the names that `db.topic` takes; durations are in seconds."""
    effective_priority: int
    last_write_ts: int | None
    last_read_ts: int | None
    queue: Mapping[str, int] | None = field(default=None, hash=False)
    """Of a queue: `ready`, `in_flight`, `delayed`, `dead`, `dead_lettered`, `expired`."""

    def _repr_html_(self) -> str:
        from .show import fields_html

        fields = {name: getattr(self, name) for name in self.__slots__ if name != "config"}
        return fields_html(f"State of {self.topic!r}", {**fields, **self.config})

    @classmethod
    def from_json(cls, body: builtins.bytes) -> TopicState:
        """From the answer to `GET /v0/topics/:t`."""
        fields = json.loads(body)
        topic = fields["topic"]
        gaps = tuple(Gap(topic, first, last, why) for first, last, why in fields.pop("gaps"))
        fields["config"] = config.shown(fields["config"])
        known = {name: fields[name] for name in cls.__slots__ if name in fields}
        return cls(gaps=gaps, **known)


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic in a list."""

    topic: str
    type: Literal["log", "queue"]
    head_seq: int
    earliest_seq: int
    count: int
    bytes: int
    durability: Durability
    effective_priority: int

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> TopicInfo:
        """From an element of `GET /v0/topics`."""
        return cls(**{name: fields[name] for name in cls.__slots__})


@dataclass(frozen=True, slots=True)
class RouterInfo:
    """The options of a router, and its progress."""

    router: str
    source: str
    dest: str
    preserve_origin: bool
    preserve_tag: bool
    tag: str | None
    """Only records with this tag are copied; `"eu:*"` selects tags by prefix."""
    create_dest: bool
    allow_cycle: bool
    guarantee: Literal["at_least_once", "exactly_once"]
    forwarded_total: int
    lag: int
    stopped_by: str | None
    """The code of the error that stops it for now, if any."""

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> RouterInfo:
        """From an element of `GET /v0/routers`."""
        tag = None if fields["filter"] is None else fields["filter"][-1]
        named = {**fields, "preserve_origin": fields["preserve_node"], "tag": tag}
        return cls(**{name: named[name] for name in cls.__slots__})


@dataclass(frozen=True, slots=True)
class Verification:
    """The result of a check of every byte. It is true if there are no problems."""

    ok: bool
    files: int
    bytes: int
    records: int
    problems: tuple[Mapping[str, Any], ...] = field(hash=False)

    @classmethod
    def from_json(cls, body: builtins.bytes) -> Verification:
        """From the report of the native module."""
        fields = json.loads(body)
        return cls(
            ok=fields["ok"],
            files=fields["files"],
            bytes=fields["bytes"],
            records=fields["records"],
            problems=tuple(fields["problems"]),
        )

    def __bool__(self) -> bool:
        return self.ok

    def _repr_html_(self) -> str:
        from .show import fields_html

        problems = "; ".join(f"{p.get('file')}: {p.get('detail')}" for p in self.problems)
        fields = {"files": self.files, "bytes": self.bytes, "records": self.records}
        title = "Verification: ok" if self.ok else "Verification: damaged"
        return fields_html(title, {**fields, "problems": problems or "none"})
