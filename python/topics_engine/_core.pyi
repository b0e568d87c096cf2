"""The native module.

JSON passes through as bytes; no Python object is built from the payload of a record. A method that
waits releases the GIL and handles signals. Failures raise the classes of `topics_engine.errors`. In
a forked child every call raises `Closed`.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol, TypeAlias, final

from typing_extensions import CapsuleType

__all__ = [
    "ACCEPT_ARROW",
    "ACCEPT_JSON",
    "BODY_ARROW",
    "BODY_NDJSON",
    "BODY_OCTETS",
    "LARGE_BODY",
    "ArrowStream",
    "Batch",
    "Bridge",
    "Calls",
    "Connection",
    "CredentialAnswers",
    "Engine",
    "HeldLease",
    "HotDispatcher",
    "Http",
    "LeaseSchedule",
    "PendingBatch",
    "PendingJobs",
    "Recovery",
    "StreamWriter",
    "UnsentBytes",
    "Watch",
    "Work",
    "__version__",
    "clone_directory",
    "close_locks_in_child",
    "config_synonyms",
    "error_body",
    "error_status",
    "make_directory",
    "parse_answer",
    "paths",
    "payload_of_line",
    "probe_remote",
    "record_of_line",
    "remote_status",
    "repair",
    "restore",
    "retry_after",
    "routes",
    "settings",
    "stop_logging",
    "verify",
    "verify_remote",
]

__version__: Final[str]

# Bits of `flags` in `Http.call`.
BODY_NDJSON: Final[int]
"""The body is `application/x-ndjson`: one `data` per line."""
BODY_OCTETS: Final[int]
"""The body is `application/octet-stream`: one binary record."""
BODY_ARROW: Final[int]
"""The body is `application/vnd.apache.arrow.stream`: one record per row."""
LARGE_BODY: Final[int]
"""Bytes. `Http` parses larger bodies on another thread; `Http.message` is to be called on one."""
ACCEPT_ARROW: Final[int]
"""`diff`: answer 200 with an Arrow IPC stream (`application/vnd.apache.arrow.stream`)."""
ACCEPT_JSON: Final[int]
"""`metrics`: answer JSON rather than Prometheus text."""

_Setting: TypeAlias = str | int | float | bool | None

def verify(path: str, progress: Callable[[int, int, int, int], object] | None = None) -> bytes:
    """Verifies every byte of a data directory, closed or open, and changes none. A JSON report
    `{"ok", "files", "bytes", "records", "problems": [{"file", "offset", "detail"}]}`.
    `progress(files, bytes, total_bytes, problems)` is called after each file.
    """

def repair(
    path: str, settings: Mapping[str, _Setting] | None = None, *, apply: bool = False
) -> bytes:
    """Reports what damage has destroyed in a closed directory; with `apply`, declares it lost and
    keeps a copy of the damaged bytes. JSON `{"done", "losses": [{"file", "offset", "shard",
    "lsns"}], "gaps": [{"topic", "from", "to", "reason"}], "kept": [file]}`.
    """

def close_locks_in_child() -> None:
    """Closes the locks of directories that a forked child inherits."""

def stop_logging() -> None:
    """Forwards the messages in the queue to `logging`, for at most a second, and no later ones."""

def probe_remote(url: str, large: int) -> bytes:
    """Probes whether a server has what a remote needs, with an object of up to `large` bytes. JSON
    `{"suitable", "conditional_writes", "features": [{"feature", "result", "detail"}]}`.
    """

def remote_status(url: str) -> bytes:
    """What a prefix of an object store holds, by its newest base; JSON, `null` if it is new."""

def restore(url: str, path: str, copy: bool = False, at_ms: int | None = None) -> bytes:
    """Restores a prefix of an object store into a directory that is missing or empty, which goes on
    with it; a `copy` has nothing to do with it, and may be of the state at `at_ms`. JSON
    `{"state_ms", "newest_ms", "has_later", "skips", "topics", "rounds", "log_bytes",
    "segment_bytes", "remote_bytes", "missing_segments"}`.
    """

def verify_remote(
    url: str,
    *,
    data: bool = False,
    progress: Callable[[int, int], object] | None = None,
) -> bytes:
    """Checks what the newest base of a prefix names: that it exists, its length and its footer,
    and with `data` every byte. JSON `{"ok", "objects", "read", "bytes", "problems":
    [{"object", "detail"}]}`, `null` if the prefix is new. `progress(done, total)` is called after
    each object.
    """

def clone_directory(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> bytes:
    """Copies a data directory that is not open, by hard links where that is possible. JSON like
    that of `Engine.backup`.
    """

def make_directory(path: str) -> None:
    """Creates a data directory if it is missing; the `InvalidRequest` of a failure says what is in
    the way.
    """

_FieldRow = tuple[str, str, str, bool, bool, list[str], tuple[Any, ...]]
"""`(name, kind, summary, required, or null, words, fields of nested objects)`"""
_RouteRow = tuple[
    tuple[str, str, str, list[Any], str, tuple[_FieldRow, ...], tuple[_FieldRow, ...] | None],
    tuple[str, list[int], list[str], bool, bool],
    list[str],
    list[str],
]
"""`(method, path, verb, needs, summary, query, body)`, `(answer, statuses, codes, waits, streams)`,
the content types of the answer, those of the body.
"""

def routes() -> list[_RouteRow]:
    """The table of routes."""

def paths() -> list[tuple[str, str, str]]:
    """Verb, method and path of each route."""

def settings() -> list[tuple[str, Any, list[str], str | int | bool, str]]:
    """The settings of `Engine.open` and `Http`: name; kind: `count`, `size`, `duration`, `flag`,
    `text`, `words` or `names`; the words of `words`; default; what it is for.
    """

def config_synonyms() -> list[tuple[str, str]]:
    """What other systems call a field of a topic's config: their name, and the field."""

def error_status(code: str) -> int:
    """The HTTP status of an error code; 500 of an unknown one."""

def error_body(code: str, message: str, detail: bytes | None = None) -> tuple[int, bytes]:
    """The status and the body of an error; `detail` is a JSON object or empty."""

def retry_after(body: bytes) -> int:
    """Whole seconds for `Retry-After` of a 429 or 503 body, at least 1."""

_Row: TypeAlias = tuple[int, int, str | None, str | None, bytes | None, bytes, bool]
"""`(seq, ts, node, tag, meta, raw, binary)`."""

def parse_answer(body: bytes, member: str) -> tuple[bytes, list[_Row], list[bytes]]:
    """The JSON answer of a server without `member`; the records in `member`; and their other fields
    as JSON, empty when no record has other fields.
    """

def payload_of_line(line: bytes) -> bytes:
    """The JSON value of a line without the whitespace around it. Raises `InvalidRequest` unless it
    is one that a record may hold.
    """

def record_of_line(
    line: bytes,
) -> tuple[bytes, bool, str | None, str | None, bytes | None] | None:
    """The record of a line as `Output` prints it: payload, whether it is binary, tag, node and
    meta; `None` if the line is a gap. Raises `InvalidRequest` if it is neither.
    """

_Acked: TypeAlias = tuple[int, int, int, int, int, bool, bool, str]
"""`(topic_id, first_seq, last_seq, head_seq, count, created, deduped, durability)`."""

_GapRow: TypeAlias = tuple[int, int, str, int, int, int]
"""`(gap_from, gap_to, reason, missed_estimate, earliest_seq, head_seq)`."""

_WatchStart: TypeAlias = tuple[str, int | None, int | None, int | None]
"""`(name, after, tail, topic_id)`; with neither `after` nor `tail`, at the earliest record."""

_NewRow = (
    tuple[bytes, bool, str | None, str | None, bytes | None, int]
    | tuple[
        bytes, bool, str | None, str | None, bytes | None, int, int | None, str | None, int, int
    ]
)
"""`(data, binary, tag, node, meta, ttl_ms)`; of jobs also `(lane, group, delay_ms, deliver_at)`."""

class _Page(Protocol):
    """The result of a read. It owns its bytes: they stay valid after close, delete and eviction."""

    @property
    def topic_id(self) -> int: ...
    @property
    def tombstone(self) -> _GapRow | None: ...
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
    def __getitem__(self, index: int, /) -> _Row: ...
    def rows(self) -> list[_Row]:
        """All of them."""

    def payloads(self) -> list[bytes]:
        """The payloads alone."""

_WatchEvent: TypeAlias = tuple[str, str, int, _Page | None, _GapRow | None, int | None]
"""`(kind, topic, topic_id, records, gap, seq)`. Kinds: `records` `gap` `caught-up` `topic-deleted`;
`seq` is the topic's cursor after the event.
"""

class _Source(Protocol):
    """An open watch. One thread waits in it; any thread may call `close`."""

    def next(self, timeout: float | None = None) -> _WatchEvent | None:
        """The next event, or `None` when the timeout passed."""

    def close(self) -> None: ...
    def cursors(self) -> list[tuple[str, int, int]]:
        """`(topic, topic_id, cursor)` after what `next` returned."""

class _Stream(Protocol):
    """An Arrow C stream, taken once: `pyarrow.table(stream)`, `polars.DataFrame(stream)`."""

    @property
    def topic_id(self) -> int: ...
    @property
    def to_seq(self) -> int:
        """The cursor after the end of the stream."""

    def check(self) -> None:
        """Raises the error that ended the stream, if one did; a reader of Arrow has its message."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> CapsuleType: ...
    def __arrow_c_schema__(self) -> CapsuleType: ...

class _Verbs(Protocol):
    """The verbs that a backend of the client's handles has apart from those over bytes."""

    @property
    def path(self) -> str: ...
    @property
    def closed(self) -> bool: ...
    def close(self) -> None:
        """Refuses further writes, syncs, and wakes every waiter with `Closed`. Idempotent."""

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
    ) -> _Acked:
        """Appends records `(data, binary, tag, node, meta, ttl_ms)`: `data` is JSON text, or raw
        bytes when `binary`; `meta` is a JSON object of strings; `config` is a JSON object.
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
    ) -> _Acked:
        """Appends raw bytes, one binary record each."""

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
    ) -> _Page:
        """One batch. Without `after`, `tail` and `before` it starts at the earliest record.
        `before` needs `tail` and pages backwards. `match` is a tag, or a prefix with one
        trailing `*`.
        """

    def wait(self, topic: str, seq: int, timeout: float | None = None) -> bool:
        """Waits until the head is above `seq`; false when the timeout passed."""

    def watch(
        self,
        topics: Sequence[_WatchStart],
        patterns: Sequence[_WatchStart],
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
    ) -> _Source: ...
    def scan_range(self, topic: str, request: bytes) -> _Stream:
        """A range; `request` is the body of `POST /v0/topics/:t/scan`."""

    def check(self) -> None:
        """Raises `Closed` if the engine is closed."""

@final
class Recovery:
    """The progress of an open that runs in another thread."""

    def __new__(cls) -> Recovery: ...
    @property
    def progress(self) -> float:
        """The share of the log's frames that has been replayed, from 0 to 1."""

@final
class Engine(_Verbs):
    """An open data directory."""

    @staticmethod
    def open(
        path: str,
        settings: Mapping[str, _Setting] | None = None,
        read_only: bool = False,
        recovery: Recovery | None = None,
        temporary: bool = False,
        at_ms: int | None = None,
        sealed: bool = False,
        base: str | None = None,
    ) -> Engine:
        """`read_only`: nothing in the directory changes, every write is refused, and other
        processes may read it at the same time. `recovery` reports the progress of an open.
        `temporary`: the directory is removed when the engine is closed or dropped. With
        `read_only`, `path` may be the URL of a prefix of an object store: its state at `at_ms`, or
        the newest one. `sealed`: only the sealed segments that a base of it names: the newest
        base, or `base`, the name that another engine has.
        """

    @property
    def base(self) -> str | None:
        """The name of the base that an engine reads a prefix from."""

    def is_current(self) -> bool:
        """Whether an engine that reads a prefix has its newest state; of one with sealed segments
        only, whether its base is the newest. Raises if that base was deleted.
        """

    def call(
        self,
        verb: str,
        name: str = "",
        subresource: str = "",
        query: bytes | None = None,
        body: bytes | None = None,
        json: bool = False,
        long: bool = False,
    ) -> bytes:
        """Runs a verb with the query and the body of its request; returns the body of the answer.
        Signals are handled while a `long` one runs.
        """

    def claim(
        self,
        queue: str,
        node: str,
        max: int = 1,
        lease_ms: int | None = None,
        wait: float = 0.0,
    ) -> _Jobs:
        """Leases jobs to a worker, waiting for the first one."""

    def ack(
        self, queue: str, node: str, seqs: list[int], lease_ids: list[int] | None = None
    ) -> _Outcome:
        """Completes jobs."""

    def consumer_read(self, topic: str, consumer: str, reader: str | None, how: _ReadArgs) -> Batch:
        """Reads with a consumer."""

    def forget_reader(self, topic: str, consumer: str, reader: str) -> None:
        """Forgets a reader of a consumer, which reads no more. Never raises."""

    def forget_remote(self) -> None:
        """Forgets the prefix that the directory has written to. The engine must have no remote."""

@final
class Batch(_Page): ...

@final
class Watch(_Source):
    def poll(self, calls: Calls, token: int) -> _WatchEvent | None:
        """The next event if one is available; otherwise the call is resolved when to poll again."""

@final
class ArrowStream(_Stream): ...

@final
class CredentialAnswers:
    """Takes the credentials that an object store asked for."""

    def put(
        self, id: str, secret: str, token: str | None = None, seconds: float | None = None
    ) -> None:
        """Credentials, and for how many seconds they are valid."""
    def fail(self, why: str) -> None:
        """Why there are none."""

_WriteOptions: TypeAlias = tuple[
    str | None, str | None, int | None, bool, bool | None, bytes | None, bool
]
"""`(node, key, expect_head, sync, create, config, disable_backpressure)`."""

_ReadArgs = tuple[int, int, bool, float, str | None, bool]
"""`(max_bytes, max_records, checkpoint, wait, match, fail_if_busy)` of a consumer's read."""

@final
class Calls:
    """The asynchronous calls of one event loop, over any number of engines.

    `drain` returns the outcome of a call under its token. A `PendingJobs` or `PendingBatch` that is
    dropped before `take` undoes itself.
    """

    def __new__(cls) -> Calls: ...
    @property
    def fd(self) -> int:
        """Readable when `drain` returns outcomes: for `loop.add_reader`."""

    @property
    def running(self) -> int:
        """The number of verbs that are running or queued."""

    def drain(self) -> list[tuple[int, Any]]:
        """Token and value, or exception, of each resolved call; clears `fd`. Never blocks."""

    def run(
        self,
        token: int,
        verb: Callable[..., object],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        long: bool = False,
    ) -> None:
        """Runs a verb on a worker thread, or on a thread of its own if it may take `long`."""

    def append(
        self,
        token: int,
        engine: Engine,
        topic: str,
        records: Sequence[_NewRow],
        options: _WriteOptions,
    ) -> _Acked | None:
        """As `Engine.append`, without waiting; `None`: the call is resolved later."""

    def append_batch(
        self,
        token: int,
        engine: Engine,
        topic: str,
        records: list[bytes],
        tag: str | None,
        options: _WriteOptions,
    ) -> _Acked | None: ...
    def claim(
        self,
        token: int,
        engine: Engine,
        queue: str,
        node: str,
        max: int,
        lease_ms: int | None,
        wait: float,
    ) -> None:
        """Claims jobs; resolves the call with a `PendingJobs`; `wait` is at most 30 s."""

    def consumer_read(
        self,
        token: int,
        engine: Engine,
        topic: str,
        consumer: str,
        reader: str | None,
        how: _ReadArgs,
    ) -> None:
        """Reads with a consumer; resolves the call with a `PendingBatch`."""

    def cancel(self, token: int) -> None:
        """Ends the wait of a token. Idempotent; callable for a call that does not wait."""

    def head(self, token: int, engine: Engine, topic: str, seq: int) -> None:
        """Resolves when a record after `seq` exists, the topic is deleted or the engine closed."""

@final
class PendingJobs:
    """Claimed jobs. Dropping it before `take` releases them."""

    def take(self) -> _Jobs | None:
        """Returns the jobs; the caller acks or releases them."""

@final
class PendingBatch:
    """A batch of a consumer. Dropping it before `take` leaves it to the next read."""

    def take(self) -> Batch | None:
        """Returns the batch."""

@final
class Bridge:
    """Delivers completed calls to an event loop."""

    @property
    def fd(self) -> int:
        """Readable when `drain` returns completions: for `loop.add_reader`."""

    def drain(self) -> list[tuple[int, int, bytes]]:
        """The completed calls as `(token, status, body)`; clears `fd`. Never blocks."""

class _Slots(Protocol):
    def take(self, label: str) -> None: ...
    def give(self, label: str) -> None: ...

class _Budget(Protocol):
    def take(self, size: int) -> bool: ...
    def give(self, size: int) -> None: ...

@final
class UnsentBytes:
    """A limit on the bytes of answers and events that are built and that their clients have not
    taken yet; 0 is no limit. While it is full, large answers are refused and streams wait.
    """

    def __new__(cls, most: int = 0) -> UnsentBytes: ...
    @property
    def held(self) -> int:
        """The bytes that are counted now."""

    @property
    def full(self) -> bool:
        """Whether there is no room."""

    def take(self, size: int) -> None:
        """Counts bytes, over the limit too."""

    def give(self, size: int) -> None:
        """Counts bytes less; wakes the streams that wait for room."""

@final
class HotDispatcher:
    """Answers the hot requests of a loop's connections. Disabled at first.

    `timeouts` are counted in calls of `check_timeouts`: for a body, for the first request, for the
    next request, and for a client that has every byte and does not close. `drain` is the number of
    calls that a closing client has for its unacknowledged bytes, and the number of bytes that add
    one call each. `room`, for when `unsent` is full: in so many calls a client must have read so
    many bytes, or its connection ends. `unacked_bytes` returns the bytes of a transport that its
    client has not acknowledged. `keys` admits the holder of an `Authorization` header to a verb, as
    the number of a grant and a label, counts the waiting requests by label, and is told of requests
    that were answered with 403: verb, name, label, request id, transport. `bounds_ns` are the upper
    bounds of the buckets of durations.
    """

    def __new__(
        cls,
        *,
        status_lines: Mapping[int, bytes],
        loopback: bool,
        max_body: int,
        receiving: _Budget,
        unsent: UnsentBytes,
        timeouts: tuple[int, int, int, int],
        drain: tuple[int, int],
        room: tuple[int, int],
        unacked_bytes: Callable[[Any], int],
        too_slow_head: bytes,
        too_slow_body: bytes,
        bounds_ns: Sequence[int],
        keys: tuple[
            Callable[[str, bytes], tuple[int, str] | None],
            _Slots,
            Callable[[str, str, str, bytes, Any], None],
        ]
        | None = None,
    ) -> HotDispatcher: ...
    def enable(self, http: Http, flush_soon: Callable[[], None]) -> None:
        """From now on `http` answers hot requests, and `flush_soon` follows a staged write."""

    def disable(self) -> None:
        """From now on the application answers every request; pending replies are the last ones."""

    def counts(self) -> list[tuple[str, int, int, list[int]]]:
        """The requests that were answered here, by verb and status: nanoseconds in all, and how
        many there are in each bucket of durations.
        """

    def check_timeouts(self) -> None:
        """Counts one tick, and closes the connections whose client is too slow."""

@final
class Connection:
    """The `asyncio.Protocol` of one connection, until that of `complete(fresh)` takes over."""

    def __new__(
        cls, dispatcher: HotDispatcher, complete: Callable[[bool], Any], server_state: Any
    ) -> Connection: ...
    def connection_made(self, transport: Any) -> None: ...
    def connection_lost(self, _exc: Exception | None) -> None: ...
    def data_received(self, data: bytes) -> None: ...
    def eof_received(self) -> None: ...
    def pause_writing(self) -> None: ...
    def resume_writing(self) -> None: ...
    def shutdown(self) -> None: ...

@final
class StreamWriter:
    """Writes one stream to its transport while the bridge is drained.

    Belongs to the loop of `http`. `ended(complete)` is called once, after the last byte.
    """

    def __new__(
        cls, http: Http, token: int, transport: Any, ended: Callable[[bool], object]
    ) -> StreamWriter: ...
    def begin(self) -> None:
        """Starts writing."""

    def pause(self) -> None:
        """The transport's buffer is full."""

    def resume(self) -> None:
        """The transport's buffer has space again."""

    def close(self) -> None:
        """Stops writing without calling `ended`. Idempotent."""

@final
class Http:
    """The verbs of `/v0` without sockets: parsing, limits, answers.

    Belongs to one event loop: `call`, `flush`, `cancel` and `bridge.drain` from its thread.
    """

    def __new__(
        cls,
        engine: Engine,
        settings: Mapping[str, _Setting] | None = None,
        grants: list[tuple[str, list[str], bool]] | None = None,
        trace_context: bool = True,
        backup_dir: str | None = None,
        unsent: UnsentBytes | None = None,
        max_body_bytes: int | None = None,
    ) -> Http:
        """`grants` are the rights of clients: the name of the key, its name prefixes (none: every
        name), whether it may change configs. A server without keys has one grant. With
        `trace_context` records get the trace context of their request. Backups go below
        `backup_dir`; without it they are refused. `unsent` bounds what is built for clients that
        do not read. The compressed buffers of an Arrow body decompress to at most `max_body_bytes`,
        64 MiB unless given; 0: 1 GiB.
        """

    def extend_grants(self, all: list[tuple[str, list[str], bool]]) -> None:
        """Appends the grants after those that exist; an existing number keeps its meaning."""

    @property
    def bridge(self) -> Bridge: ...
    def call(
        self,
        verb: str,
        name: str,
        query: bytes,
        body: bytes,
        flags: int,
        token: int,
        key: bytes | None = None,
        subresource: str = "",
        grant: int = 0,
        traceparent: bytes | None = None,
        tracestate: bytes | None = None,
    ) -> tuple[int, bytes] | None:
        """Answers `(status, body)`, or `None`: the completion with this token comes over the
        bridge, once.

        `verb` is that of a row of `topics_engine.asgi.routes`; `name` the topic, queue or router
        in the path, percent-decoded; `subresource` the consumer, session or writer in the path;
        `query` the raw query string; `flags` the bits above; `key` the `Idempotency-Key` header, or
        the `Last-Event-ID` of a stream; `grant` the number of the client's grant; `traceparent`
        and `tracestate` the headers of these names.
        The body is JSON, except for status 200 of `metrics` without `ACCEPT_JSON`. The body of a
        stream, such as `diff` with `ACCEPT_ARROW`, is its beginning: `pull` continues.
        """

    def pull(self, token: int) -> tuple[list[bytes], int] | None:
        """Pulls the stream that this call opened: its pieces (bytes, or messages of a socket), and
        0: pull again; 1: wait for a completion with status 0; 2: the end; 3: it failed, and the
        client must not take its output for complete. `None` without such a stream. `cancel` ends
        it.
        """

    def take_rest(self, token: int) -> bytes:
        """Takes the rest of the events of which a part was pulled."""

    def failure(self, token: int) -> tuple[str, str] | None:
        """Why the stream of this call failed: a code and a message. Once, until `cancel`."""

    def message(self, token: int, text: bytes, read: bool, write: bool) -> None:
        """Handles a message from the client of a socket, with its scopes."""

    def flush(self) -> None:
        """Commits the writes that were staged in this tick of the loop; called once at its end.
        Completions are queued without a signal on the fd: call `Bridge.drain` next.
        """

    @property
    def staged(self) -> bool:
        """Whether a call since the last `flush` staged a write: then `flush` is due."""

    @property
    def pending(self) -> int:
        """The number of open calls and streams."""

    def cancel(self, token: int) -> None:
        """Cancels a waiting call whose client has gone. A staged write continues."""

    def set_ready(self, ready: bool) -> None:
        """Sets the answer of `ready`; false while draining."""

    def close(self) -> None:
        """Answers every waiting call with what is available, and stops the threads of this
        object. The engine stays open. Idempotent.
        """

_Jobs = tuple[list[tuple[int, int, int, int]], int, Batch, list[HeldLease]]
"""`(seq, lease_id, deadline, deliveries)` of each job, how long the leases last (ms), and the
records in the same order.
"""

_PeekedJob = tuple[
    str, int, str | None, int | None, int | None, int | None, int, str | None, str | None
]
_PeekedJobs = tuple[list[_PeekedJob], Batch]
"""`(state, deliveries, node, lease_id, deadline, visible_at, lane, group, error)` of each job;
their records.
"""

_TxnRows = tuple[str, Sequence[_NewRow], str | None]
_Acks = tuple[str, str, list[int], list[int] | None]
_Committed = tuple[int, bool, list[tuple[str, int, int, int]]]

_Outcome = tuple[list[int], list[int], int | None, list[str]]
"""Seqs that were done, seqs that were skipped, deadline of extended leases (epoch ms), why each seq
was skipped: `restarted`, `ended` or `gone`; nothing for `remove` and `promote`.
"""

_Renewal = tuple[int, str, str, int, list[int], list[int], int | None]
"""`(claim, queue, node, lease_ms, seqs, lease_ids, stream)` of leases to renew in one call."""

@final
class LeaseSchedule:
    """The leases of jobs that were claimed from a server, and when each is to be renewed."""

    def __new__(cls) -> LeaseSchedule: ...
    def hold(
        self, queue: str, node: str, lease_ms: int, jobs: list[tuple[int, int]], elapsed: float
    ) -> list[HeldLease]:
        """Adds jobs `(seq, lease_id)` of a claim that was sent `elapsed` seconds ago."""

    def hold_stream(self, queue: str, node: str, lease_ms: int, stream: int) -> HeldLease:
        """Adds every job of a stream."""

    def next_due(self) -> float | None:
        """Seconds until a renewal is due; `None` while nothing is held."""

    def take_due(self) -> list[_Renewal]:
        """The renewals that are due."""

    def renewed(self, claim: int, elapsed: float, ended: list[tuple[int, str]]) -> None:
        """A renewal that was sent `elapsed` seconds ago has succeeded, except for some leases:
        `(seq, reason)`.
        """

    def failed(self, claim: int) -> None:
        """A renewal has failed: it is due again soon."""

@final
class HeldLease:
    """A lease that is renewed until this is dropped."""

    @property
    def ended(self) -> str | None:
        """Why it ended, if a renewal found that it has."""

    @property
    def is_overdue(self) -> bool:
        """Whether it was not renewed in time."""

    def set_lease(self, lease_ms: int) -> None:
        """It was renewed for another time, which later renewals keep."""

    def discard(self) -> None:
        """Ends the renewals. Idempotent."""

@final
class Work:
    """A stream of jobs: at most `max` are leased to it at a time."""

    def __new__(
        cls, engine: Engine, queue: str, node: str, max: int = 1, lease_ms: int | None = None
    ) -> Work: ...
    def next(self, wait: float = 0.0) -> _Jobs | None:
        """The next jobs; `None` when the stream was closed."""

    def next_later(self, calls: Calls, token: int, wait: float) -> bool:
        """Resolves the call with a `PendingJobs`; `wait` is at most 30 s. False if it is closed."""

    def close(self) -> None:
        """Gives its jobs back; they do not count as delivered. Idempotent."""
