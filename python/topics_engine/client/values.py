"""The values that calls take and return. All are frozen."""

from __future__ import annotations

import builtins
import json
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

from ..frozen import Frozen, frozen
from . import config
from .arguments import Duration, Time, optional_time_of, time_of

if TYPE_CHECKING:
    from typing import Self

Durability = Literal["ephemeral", "memory", "disk", "fsync"]


@frozen()
class NewRecord(Frozen):
    """A record to append with options of its own, or with a list as its payload.

    Example:
        ```python
        jobs.append([te.NewRecord({"to": "a"}, lane=0), te.NewRecord({"to": "b"}, delay="5m")])
        ```
    """

    data: Any
    """`bytes` are stored as they are, any other value as JSON."""
    tag: str | None = None
    """Readers can select records by their tag."""
    origin: str | None = None
    """The node that the record comes from; readers can exclude nodes."""
    meta: Mapping[str, str] | None = None
    """Headers: text by name."""
    ttl: Duration = 0
    """How long the record is kept; 0 is for ever."""
    lane: int | None = None
    """Of a job: 0 to 9 (default: 5); lower lanes are claimed first."""
    group: str | None = None
    """Of a job: at most one job of a group is leased at a time, in seq order."""
    delay: Duration = 0
    """Of a job: how long no claim gets it."""
    deliver_at: Time | None = None
    """Of a job: no claim gets it before this time."""


class _Decoded(Frozen):
    """The slot of the decoded payload, which is not a field: it takes no part in comparisons."""

    __slots__ = ("_data",)
    _data: Any


@frozen(unhashed=("meta",))
class Record(_Decoded):
    """A record as it was committed. `data` is decoded once, at the first access.

    Example:
        ```python
        match item:
            case te.Record(seq=seq, data=data): print(seq, data)
        ```
    """

    topic: str
    """The name of its topic."""
    seq: int
    """Its position in the topic; the first record of a topic has 1."""
    ts: int
    """When it was committed, in milliseconds since the Unix epoch."""
    origin: str | None
    """The node that it comes from."""
    tag: str | None
    """The tag that it was written with."""
    meta: Mapping[str, str] | None
    """Its headers."""
    stored: bytes
    """The bytes of the payload: JSON text, or raw bytes if `binary`."""
    binary: bool
    """Whether the payload was written as bytes."""

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
        """When it was committed, as an aware `datetime`."""
        return time_of(self.ts)

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


@frozen()
class Gap(Frozen):
    """Records `first` to `last` of a topic were lost. The range is exact.

    With the reason `recreated` the records of a topic that is gone were lost. The range is that of
    the new topic, whose records follow.
    """

    topic: str
    """The name of the topic."""
    first: int
    """The first lost seq."""
    last: int
    """The last lost seq."""
    reason: str
    """Why, for diagnosis: `cap`, `ttl`, `crash`, `restart`, `recreated`, `corrupt`, …."""
    missed_estimate: int = 0
    """Most records that the range had; deleted ones are not lost."""


def cursor_behind(first: int, last: int, reason: str) -> int:
    """The cursor of a reader that has got a gap. One of a topic that is gone (`recreated`) covers
    seqs that the new topic has too, of which the reader has got none.
    """
    return first - 1 if reason == "recreated" else last


@frozen()
class CaughtUp(Frozen):
    """Everything of the topic up to `seq` was delivered; what follows is delivered as it is
    written.
    """

    topic: str
    """The name of the topic."""
    seq: int
    """Its head at that moment."""


@frozen()
class TopicDeleted(Frozen):
    """The topic was deleted. A new one of its name joins the watch from its first record."""

    topic: str
    """The name of the topic."""


@frozen()
class Ack(Frozen):
    """The answer to a write."""

    topic_id: int
    """The id of the topic: another one after it was deleted and created again."""
    first_seq: int
    """The seq of the first record of the batch."""
    last_seq: int
    """The seq of the last record of the batch."""
    head_seq: int
    """The head of the topic after the write."""
    count: int
    """How many records the batch has."""
    created: bool
    """Whether the write created the topic."""
    deduped: bool
    """Whether it was a repeat of an `idempotency_key`; the seqs are those of the first time."""
    durability: Durability
    """The class that the batch was acked with."""


@frozen()
class Deleted(Frozen):
    """The answer to a delete: how many records were removed, and the topic afterwards."""

    deleted: int
    """How many records were deleted."""
    earliest_seq: int
    """The first seq that is kept."""
    head_seq: int
    """The last seq that was given."""
    count: int
    """How many records there are."""
    bytes: int
    """The bytes of their payloads."""


@frozen(unhashed=("config", "queue"))
class TopicState(Frozen):
    """The state of a topic at one moment."""

    topic: str
    """The name of the topic."""
    topic_id: int
    """Its id: another one after it was deleted and created again."""
    epoch: int
    """Raised each time that a topic of this name is created."""
    type: Literal["log", "queue"]
    """What it is."""
    head_seq: int
    """The last seq that was given; 0 without any."""
    earliest_seq: int
    """The first seq that is kept; the next one if there is none."""
    evict_floor: int
    """One above the highest record that was lost by a cap, a ttl, a crash or damage."""
    next_seq: int
    """The seq of the next record."""
    count: int
    """How many records there are."""
    bytes: int
    """The bytes of their payloads."""
    gaps: tuple[Gap, ...]
    """The ranges that were lost."""
    config: Mapping[str, Any]
    """The options, by the names that `db.topic` takes; durations are in seconds."""
    effective_priority: int
    """The priority that its writes have now."""
    last_write_time: datetime | None
    """When it was last written to; `None` before the first write."""
    last_read_time: datetime | None
    """When it was last read; `None` before the first read."""
    queue: Mapping[str, int] | None = None
    """Of a queue: `ready`, `in_flight`, `delayed`, `dead`, `dead_lettered`, `expired`."""

    def _repr_html_(self) -> str:
        from .show import fields_html

        fields: dict[str, object] = {
            name: getattr(self, name) for name in self.__match_args__ if name != "config"
        }
        return fields_html(f"State of {self.topic!r}", {**fields, **self.config})

    @classmethod
    def from_json(cls, body: builtins.bytes) -> Self:
        """From the answer to `GET /v0/topics/:t`.

        Args:
            body: the answer.
        """
        fields = json.loads(body)
        topic = fields["topic"]
        gaps = tuple(Gap(topic, first, last, why) for first, last, why in fields.pop("gaps"))
        fields["config"] = config.shown(fields["config"])
        for name in ("last_write", "last_read"):
            fields[f"{name}_time"] = optional_time_of(fields.pop(f"{name}_ts"))
        known = {name: fields[name] for name in cls.__match_args__ if name in fields}
        return cls(gaps=gaps, **known)


@frozen()
class QueueState(TopicState):
    """The state of a queue: that of its topic, whose `queue` is not `None`."""

    if TYPE_CHECKING:
        queue: Mapping[str, int]


@frozen()
class TopicInfo(Frozen):
    """A topic in a list."""

    topic: str
    """The name of the topic."""
    type: Literal["log", "queue"]
    """What it is."""
    head_seq: int
    """The last seq that was given; 0 without any."""
    earliest_seq: int
    """The first seq that is kept; the next one if there is none."""
    count: int
    """How many records there are."""
    bytes: int
    """The bytes of their payloads."""
    durability: Durability
    """Its durability class."""
    effective_priority: int
    """The priority that its writes have now."""

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> TopicInfo:
        """From an element of `GET /v0/topics`.

        Args:
            fields: the element.
        """
        return cls(**{name: fields[name] for name in cls.__match_args__})


@frozen()
class RouterInfo(Frozen):
    """The options of a router, and its progress."""

    router: str
    """The name of the router."""
    source: str
    """The topic that is copied from."""
    dest: str
    """The topic that is copied to."""
    preserve_origin: bool
    """Whether copies keep their origin."""
    preserve_tag: bool
    """Whether copies keep their tag."""
    tag: str | None
    """Only records with this tag are copied; `"eu:*"` selects tags by prefix."""
    create_dest: bool
    """Whether it creates its destination."""
    allow_cycle: bool
    """Whether it may be part of a cycle."""
    guarantee: Literal["at_least_once", "exactly_once"]
    """What a crash may do: repeat copies, or not."""
    forwarded_total: int
    """How many records it has copied since the start."""
    lag: int
    """Records of the source that are not copied yet."""
    stopped_by: str | None
    """The code of the error that stops it for now, if any."""

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> RouterInfo:
        """From an element of `GET /v0/routers`.

        Args:
            fields: the element.
        """
        tag = None if fields["filter"] is None else fields["filter"][-1]
        named = {**fields, "preserve_origin": fields["preserve_node"], "tag": tag}
        return cls(**{name: named[name] for name in cls.__match_args__})


@frozen()
class Split(Frozen):
    """A part of a topic: read it with `db.scan(part.topic, after=part.after, to_seq=part.to_seq)`,
    in any process.
    """

    topic: str
    """The name of the topic."""
    topic_id: int
    """The id of the topic: given to `scan`, it refuses a topic that was created anew."""
    after: int
    """The cursor before the part."""
    to_seq: int
    """The last seq of the part."""
    records: int
    """About how many records it has."""
    bytes: int
    """About how many bytes of payloads it has."""


@frozen()
class Backup(Frozen):
    """A backup or a clone that was made."""

    dir: str
    """The directory, or the URL."""
    linked: int
    """How many files it shares with the source, by hard links; 0 in an object store."""
    copied: int
    """How many files were copied or fetched; objects that were put."""
    copied_bytes: int
    """The bytes of these."""
    fetched: int
    """How many segments were fetched from the object store."""

    @classmethod
    def from_json(cls, body: builtins.bytes) -> Backup:
        """From the answer of the native module or of a server.

        Args:
            body: the answer.
        """
        fields = json.loads(body)
        return cls(
            dir=fields["dir"],
            linked=fields["linked"],
            copied=fields["copied"],
            copied_bytes=fields["copied_bytes"],
            fetched=fields["fetched"],
        )


@frozen()
class Restored(Frozen):
    """The result of a restore from an object store."""

    state_ms: int
    """The time of the restored state, ms since 1970: that of its last round."""
    newest_ms: int
    """The time of the newest state that is known to be in the prefix."""
    has_later: bool
    """Whether the prefix holds later states."""
    skips: bool
    """Whether records may have been acked after the state: each topic then has a gap `crash` of
    2^32 seqs, so that no seq is given twice."""
    topics: int
    """Topics of the restored state."""
    rounds: int
    """Rounds of the log that were applied."""
    log_bytes: int
    """Bytes of the log that were restored."""
    segment_bytes: int
    """Bytes of segments that were restored."""
    remote_bytes: int
    """Bytes of segments that stay in the prefix, and are read from it."""
    missing_segments: int
    """Segments that were damaged before they could be backed up: their seqs are gaps."""

    @classmethod
    def from_json(cls, body: builtins.bytes) -> Restored:
        """From the report of the native module.

        Args:
            body: the report.
        """
        return cls(**json.loads(body))


@frozen(unhashed=("problems",))
class Verification(Frozen):
    """The result of a check of a data directory, or of a prefix of an object store. It is true if
    there are no problems.
    """

    ok: bool
    """Whether there are no problems."""
    files: int
    """How many files of the directory were read."""
    bytes: int
    """How many bytes of files or objects were read."""
    records: int
    """How many records of the directory were checked."""
    cold_records: int
    """How many were not, because they are in an object store: see `te.verify(URL, data=True)`."""
    problems: tuple[Mapping[str, Any], ...]
    """Each with `file`, `offset` and `detail`; of a prefix with `object` and `detail`."""
    remote: str | None = None
    """The URL of the prefix."""
    objects: int = 0
    """How many objects of the prefix were looked at."""
    read: int = 0
    """How many of them were read whole."""

    @classmethod
    def from_json(cls, body: builtins.bytes) -> Verification:
        """From the report of the native module.

        Args:
            body: the report.
        """
        fields = json.loads(body)
        return cls(
            ok=fields["ok"],
            files=fields["files"],
            bytes=fields["bytes"],
            records=fields["records"],
            cold_records=fields["cold_records"],
            problems=tuple(fields["problems"]),
        )

    @classmethod
    def of_prefix(cls, found: Mapping[str, Any]) -> Verification:
        """From the report of a prefix.

        Args:
            found: the report.
        """
        problems = tuple(found["problems"])
        return cls(files=0, records=0, cold_records=0, **{**found, "problems": problems})

    def __bool__(self) -> bool:
        return self.ok

    def _repr_html_(self) -> str:
        from .show import fields_html

        problems = "; ".join(f"{p.get('file')}: {p.get('detail')}" for p in self.problems)
        fields = {
            "files": self.files,
            "bytes": self.bytes,
            "records": self.records,
            "cold_records": self.cold_records,
        }
        title = "Verification: ok" if self.ok else "Verification: damaged"
        return fields_html(title, {**fields, "problems": problems or "none"})


def lease_text(lease: int) -> str:
    """The id of a lease, as a server has it."""
    return f"lease_{lease}"


def lease_number(lease_id: str) -> int:
    """The number in the id of a lease."""
    return int(lease_id.removeprefix("lease_"))
