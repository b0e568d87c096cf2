"""The native module: bytes in, bytes out.

JSON goes in and comes out as bytes; nothing here builds Python objects from a record's payload.
Every method that waits releases the GIL and stays open to signals. Failures raise the classes of
`topics_engine.errors`. In a forked child every call raises `Closed`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias, final

from typing_extensions import CapsuleType

__all__ = [
    "ACCEPT_ARROW",
    "ACCEPT_JSON",
    "BODY_NDJSON",
    "BODY_OCTETS",
    "ArrowStream",
    "Batch",
    "Bridge",
    "Connection",
    "Consumer",
    "Engine",
    "Gate",
    "Http",
    "Queue",
    "Watch",
    "Work",
    "__version__",
    "defaults",
    "error_body",
    "repair",
    "retry_after",
    "verify",
]

__version__: Final[str]

# Bits of `flags` in `Http.call`.
BODY_NDJSON: Final[int]
"""The body is `application/x-ndjson`: one `data` a line."""
BODY_OCTETS: Final[int]
"""The body is `application/octet-stream`: one binary record."""
ACCEPT_ARROW: Final[int]
"""`diff`: answer 200 with an Arrow IPC stream (`application/vnd.apache.arrow.stream`)."""
ACCEPT_JSON: Final[int]
"""`metrics`: answer JSON rather than Prometheus text."""

_Setting: TypeAlias = str | int | float | bool | None

def verify(path: str, progress: Callable[[int, int, int, int], object] | None = None) -> bytes:
    """Checks every byte of a data directory, closed or open, and changes none; a JSON report
    `{"ok", "files", "bytes", "records", "problems": [{"file", "offset", "detail"}]}`.
    `progress(files, bytes, total_bytes, problems)` is called after each file.
    """

def repair(
    path: str, settings: Mapping[str, _Setting] | None = None, *, apply: bool = False
) -> bytes:
    """What damage to the log of a closed directory has taken; with `apply`, gives it up and keeps
    a copy of the damaged bytes. JSON `{"done", "losses": [{"file", "offset", "shard", "lsns"}],
    "gaps": [{"topic", "from", "to", "reason"}], "kept": [file]}`.
    """

def defaults() -> dict[str, str | int | bool]:
    """The settings of `Engine.open` and `Http`, with their defaults."""

def error_body(code: str, message: str, detail: bytes | None = None) -> tuple[int, bytes]:
    """The status and the body of an error; `detail` is a JSON object or empty."""

def retry_after(body: bytes) -> int:
    """Whole seconds for `Retry-After` of a 429 or 503 body, at least 1."""

_NewRow = (
    tuple[bytes, bool, str | None, str | None, bytes | None, int]
    | tuple[
        bytes, bool, str | None, str | None, bytes | None, int, int | None, str | None, int, int
    ]
)
"""`(data, binary, tag, node, meta, ttl_ms)`; of jobs also `(lane, group, delay_ms, deliver_at)`."""

@final
class Engine:
    """An open data directory."""

    @staticmethod
    def open(path: str, settings: Mapping[str, _Setting] | None = None) -> Engine: ...
    @property
    def path(self) -> str: ...
    @property
    def closed(self) -> bool: ...
    def close(self) -> None:
        """Stages nothing more, syncs, wakes every waiter with `Closed`. Idempotent."""

    def append(
        self,
        topic: str,
        records: Sequence[_NewRow],
        *,
        node: str | None = None,
        key: str | None = None,
        expect_head: int | None = None,
        sync: bool = False,
        create: bool | None = None,
        config: bytes | None = None,
        disable_backpressure: bool = True,
    ) -> tuple[int, int, int, int, int, bool, bool, str]:
        """Appends records `(data, binary, tag, node, meta, ttl_ms)`: `data` is JSON text, or raw
        bytes when `binary`; `meta` is a JSON object of strings; `config` is a JSON object.

        Returns `(topic_id, first_seq, last_seq, head_seq, count, created, deduped, durability)`.
        """

    def append_batch(
        self,
        topic: str,
        records: Sequence[bytes],
        *,
        tag: str | None = None,
        node: str | None = None,
        key: str | None = None,
        expect_head: int | None = None,
        sync: bool = False,
        create: bool | None = None,
        config: bytes | None = None,
        disable_backpressure: bool = True,
    ) -> tuple[int, int, int, int, int, bool, bool, str]:
        """Appends raw bytes, one binary record each; returns what `append` does."""

    def read(
        self,
        topic: str,
        *,
        after: int | None = None,
        tail: int | None = None,
        before: int | None = None,
        upto: int | None = None,
        limit: int = 256,
        max_bytes: int = 1 << 20,
        skip_nodes: Sequence[str] | None = None,
        match: str | None = None,
        topic_id: int | None = None,
        strong: bool = False,
        touch: bool = True,
    ) -> Batch:
        """One batch. With none of `after`, `tail`, `before`: from the earliest kept record.
        `before` needs `tail` and pages backwards. `match` is a tag, or a prefix with one
        trailing `*`.
        """

    def tail(self, topic: str, count: int) -> Batch:
        """The newest `count` records."""

    def wait(self, topic: str, seq: int, timeout: float | None = None) -> bool:
        """Waits until the head is above `seq`; false when the timeout passed."""

    def watch(
        self,
        topics: Sequence[tuple[str, int | None, int | None, int | None]],
        patterns: Sequence[tuple[str, int | None, int | None, int | None]],
        *,
        lenient: bool = False,
        skip_nodes: Sequence[str] | None = None,
        match: str | None = None,
        limit: int = 256,
        max_batch_bytes: int = 262144,
        strong: bool = False,
        queue_frames: int = 1024,
        queue_bytes: int = 16777216,
        stall_ms: int | None = None,
    ) -> Watch:
        """Starts are `(name, after, tail, topic_id)`; with neither `after` nor `tail`, at the
        earliest record.
        """

    def seek(self, topic: str, ts: int) -> int:
        """The cursor just before the first record at or after `ts`."""

    def delete(self, topic: str, before_seq: int | None = None, match: str | None = None) -> bytes:
        """Deletes records; JSON `{"deleted", "earliest_seq", "head_seq", "count", "bytes"}`."""

    def create(self, topic: str, config: bytes | None = None) -> bytes:
        """Creates a topic or updates the named fields; JSON `{"topic", "created", "config"}`."""

    def delete_topic(self, topic: str, if_empty: bool = False) -> bytes:
        """JSON `{"topic", "deleted", "routers_removed"}`."""

    def create_router(
        self,
        router: str,
        source: str,
        dest: str,
        *,
        preserve_node: bool = True,
        preserve_tag: bool = True,
        match: str | None = None,
        create_dest: bool = True,
        allow_cycle: bool = False,
        exactly_once: bool = False,
    ) -> bool:
        """Creates a router, or updates it; whether it was created."""

    def delete_router(self, router: str) -> bool:
        """Whether there was one."""

    def router(self, router: str) -> bytes:
        """JSON as `GET /v0/routers/:r`."""

    def routers(self, prefix: str = "") -> bytes:
        """JSON `{"routers": [...]}` in name order."""

    def state(self, topic: str, touch: bool = False) -> bytes:
        """JSON as `GET /v0/topics/:t`."""

    def list(self, prefix: str = "", after: str | None = None, limit: int = 100) -> bytes:
        """JSON `{"topics": [...]}` in name order after `after`."""

    def sync(self, topic: str | None = None) -> None:
        """Returns when everything acked before (of one topic) is durable."""

    def checkpoint(self) -> None: ...
    def verify(self) -> bytes:
        """Reads and checks every live record; a report like that of the function `verify`."""

    def metrics(self, json: bool = False) -> bytes:
        """Prometheus text, or JSON."""

    def scan(
        self,
        topic: str,
        *,
        after: int | None = None,
        upto: int | None = None,
        skip_nodes: Sequence[str] | None = None,
        match: str | None = None,
        topic_id: int | None = None,
        binary: bool | None = None,
        batch_bytes: int = 4 << 20,
    ) -> ArrowStream:
        """A range as an Arrow stream, pinned at the head (or `upto`) when it starts. `binary`
        types `data` as binary rather than utf8; `None`: as the first record is.
        """

@final
class Batch:
    """What a read returned; owns its bytes, valid after close, deletion and eviction."""

    @property
    def topic_id(self) -> int: ...
    @property
    def tombstone(self) -> tuple[int, int, str, int, int, int] | None:
        """`(gap_from, gap_to, reason, missed_estimate, earliest_seq, head_seq)`."""

    @property
    def next_from_seq(self) -> int: ...
    @property
    def head_seq(self) -> int: ...
    @property
    def earliest_seq(self) -> int: ...
    @property
    def caught_up(self) -> bool: ...
    @property
    def lag(self) -> int: ...
    @property
    def lag_ms(self) -> int: ...
    @property
    def records_scanned(self) -> int: ...
    def __len__(self) -> int: ...
    def __getitem__(
        self, index: int, /
    ) -> tuple[int, int, str | None, str | None, bytes | None, bytes, bool]:
        """`(seq, ts, node, tag, meta, raw, binary)`."""

    def rows(self) -> list[tuple[int, int, str | None, str | None, bytes | None, bytes, bool]]:
        """All of them."""

    def payloads(self) -> list[bytes]:
        """The payloads alone."""

@final
class Watch:
    """An open subscription. One thread waits in it; `close` from any."""

    def next(
        self, timeout: float | None = None
    ) -> (
        tuple[str, str, int, Batch | None, tuple[int, int, str, int, int, int] | None, int | None]
        | None
    ):
        """`(kind, topic, topic_id, records, gap, seq)`, or `None` when the timeout passed. Kinds:
        `records` `gap` `caught-up` `topic-deleted`; `gap` as `Batch.tombstone`; `seq` is the
        topic's cursor after the event.
        """

    def close(self) -> None: ...
    def cursors(self) -> list[tuple[str, int, int]]:
        """`(topic, topic_id, cursor)` after what `next` returned."""

@final
class ArrowStream:
    """An Arrow C stream, taken once: `pyarrow.table(stream)`, `polars.DataFrame(stream)`."""

    @property
    def topic_id(self) -> int: ...
    @property
    def to_seq(self) -> int:
        """The cursor after the end of the stream."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> CapsuleType: ...
    def __arrow_c_schema__(self) -> CapsuleType: ...

@final
class Bridge:
    """Completions on their way to an event loop."""

    @property
    def fd(self) -> int:
        """Readable when there are completions: for `loop.add_reader`."""

    def drain(self) -> list[tuple[int, int, bytes]]:
        """Completed calls as `(token, status, body)`, and clears `fd`. Never blocks."""

@final
class Gate:
    """Which requests of a loop's connections are hot, and how they are answered. Shut at first.

    `ticks` are the calls of `sweep` that a body, the first and the next request may take.
    """

    def __new__(
        cls,
        *,
        status_lines: Mapping[int, bytes],
        loopback: bool,
        max_body: int,
        ticks: tuple[int, int, int],
        too_slow_head: bytes,
        too_slow_body: bytes,
    ) -> Gate: ...
    def open(self, http: Http, flush_soon: Callable[[], None]) -> None:
        """From now on hot requests are answered by `http`; writes that it stages are announced."""

    def shut(self) -> None:
        """From now on every request goes to the application; answers to come are the last ones."""

    def sweep(self) -> None:
        """A tick of the clock: connections whose client is too slow end."""

@final
class Connection:
    """The `asyncio.Protocol` of one connection, until `complete()` makes another take over."""

    def __new__(cls, gate: Gate, complete: Callable[[], Any], server_state: Any) -> Connection: ...
    def connection_made(self, transport: Any) -> None: ...
    def connection_lost(self, _exc: Exception | None) -> None: ...
    def data_received(self, data: bytes) -> None: ...
    def eof_received(self) -> None: ...
    def pause_writing(self) -> None: ...
    def resume_writing(self) -> None: ...
    def shutdown(self) -> None: ...

@final
class Http:
    """The routes of `/v0` without sockets: parsing, limits, answers.

    Belongs to one event loop: `call`, `flush`, `cancel` and `bridge.drain` from its thread.
    """

    def __new__(cls, engine: Engine, settings: Mapping[str, _Setting] | None = None) -> Http: ...
    @property
    def bridge(self) -> Bridge: ...
    def call(
        self,
        route: str,
        name: str,
        query: bytes,
        body: bytes,
        flags: int,
        token: int,
        key: bytes | None = None,
    ) -> tuple[int, bytes] | None:
        """Answers `(status, body)`, or `None`: the completion with this token comes over the
        bridge, once.

        `name` is the topic, percent-decoded; `query` the raw query string; `flags` the bits
        above; `key` the `Idempotency-Key` header. Routes: `list` `create` `state` `drop` `write`
        `diff` `delete` `seek` `states` `sync` `checkpoint` `verify` `metrics` `health` `ready`.
        The body of an answer is JSON, but for status 200 of `metrics` (without `ACCEPT_JSON`)
        and of `diff` with `ACCEPT_ARROW`.
        """

    def flush(self) -> None:
        """Leads the writes that this loop tick staged, once at its end. What it completes is in
        the bridge without a signal on its fd: call `Bridge.drain` next.
        """

    @property
    def staged(self) -> bool:
        """Whether a call since the last `flush` staged a write: then `flush` is due."""

    @property
    def pending(self) -> int:
        """Calls that are not yet answered."""

    def cancel(self, token: int) -> None:
        """Forgets a waiting call: its client is gone. A staged write goes on."""

    def set_ready(self, ready: bool) -> None:
        """What `ready` answers; false while draining."""

    def close(self) -> None:
        """Answers every waiting `diff` with what there is, stops the threads of this object.
        The engine stays open. Idempotent.
        """

_Jobs = tuple[list[tuple[int, int, int, int]], Batch]
"""`(seq, lease_id, deadline, deliveries)` of each job, and their records in the same order."""

_Outcome = tuple[list[int], list[int], int | None]
"""Seqs that were done, seqs that were skipped, when extended leases run out (epoch ms)."""

@final
class Queue:
    """A queue by name."""

    def __new__(cls, engine: Engine, topic: str) -> Queue: ...
    def claim(
        self, node: str, max: int = 1, lease_ms: int | None = None, wait: float = 0.0
    ) -> _Jobs:
        """Leases jobs, waiting up to `wait` seconds for the first."""

    def ack(self, node: str, seqs: list[int], lease_ids: list[int] | None = None) -> _Outcome: ...
    def nack(
        self,
        node: str,
        seqs: list[int],
        lease_ids: list[int] | None = None,
        delay_ms: int | None = None,
    ) -> _Outcome: ...
    def extend(
        self,
        node: str,
        seqs: list[int],
        lease_ids: list[int] | None = None,
        lease_ms: int | None = None,
    ) -> _Outcome: ...
    def redrive(
        self,
        to: str | None = None,
        match: str | None = None,
        seqs: list[int] | None = None,
        limit: int | None = None,
        dry_run: bool = False,
    ) -> int: ...
    def work(self, node: str, max: int = 1, lease_ms: int | None = None) -> Work: ...

@final
class Work:
    """A stream of jobs: at most `max` are leased to it at a time."""

    def next(self, wait: float = 0.0) -> _Jobs | None:
        """The next jobs; `None` when the stream was closed."""

    def close(self) -> None:
        """Gives back what it holds. Idempotent."""

@final
class Consumer:
    """A reader with a stored cursor."""

    def __new__(
        cls,
        engine: Engine,
        topic: str,
        name: str,
        mode: str | None = None,
        start: str = "start",
        auto_commit: bool = False,
    ) -> Consumer: ...
    @property
    def mode(self) -> str: ...
    @property
    def cursor(self) -> int: ...
    def read(
        self,
        max_bytes: int = ...,
        max_records: int = 2000,
        checkpoint: bool = True,
        wait: float = 0.0,
        match: str | None = None,
        fail_if_busy: bool = False,
    ) -> Batch: ...
    def commit(self, seq: int) -> None: ...
    def seek(
        self, *, seq: int | None = None, ts: int | None = None, to: str | None = None
    ) -> int: ...
