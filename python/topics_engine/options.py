"""The options of topics, queues, engines and scans, as types.

Generated from the tables of the engine and of the HTTP routes: change those, and run
`python .ci/typed_options.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, Literal, TypedDict

if TYPE_CHECKING:
    from .client.arguments import Duration, Since, Size, Start
    from .client.schema import Schema
    from .client.transaction import Named


class QueueConfig(TypedDict, total=False):
    """The options of a queue: of `db.queue`."""

    durability: Literal["ephemeral", "memory", "disk", "fsync"]
    durable: bool
    """True is fsync, false is disk."""
    ttl: Duration
    """Records expire after this; 0 is never."""
    cap_records: int
    """Most records; 0 is no cap."""
    cap_bytes: Size
    """Most payload bytes; 0 is no cap."""
    discard: Literal["old", "reject"]
    """What a full topic does, "old" or "reject"."""
    priority: int | None
    """-1000 to 1000, or None."""
    auto_priority: bool
    """Priority by how recently it was read."""
    auto_create: bool
    """Of a queue: a dead letter may create the topic it goes to."""
    dedupe_node: bool
    """Readers may skip records by node."""
    idempotency_window: Duration
    """How long keys are kept."""
    lease: Duration
    """Of a queue: how long a lease lasts."""
    claim_jitter: Duration
    """Of a queue: claims within this share what there is."""
    max_deliveries: int
    """Of a queue: deliveries before a job is dead; 0 is no limit."""
    dead_letter: str | Named | None
    """Of a queue: where dead jobs go, or None."""
    retry_backoff: Duration
    """Of a queue: delay of a nack without one."""
    leases_durable: bool
    """Of a queue: leases survive a restart."""
    paused: bool
    """Of a queue: nothing is claimed."""


class TopicConfig(QueueConfig, total=False):
    """The options of a topic: of `db.topic`."""

    type: Literal["log", "queue"]


class Settings(TypedDict, total=False):
    """The settings of an engine: of `te.open`. Each is also a variable `TOPICS_…`."""

    auto_create: bool | str | list[str]
    """Whether a write creates its topic; or patterns of the names for which it does."""
    checkpoint_bytes: Size
    """Log bytes after which a checkpoint moves records to segments."""
    checkpoint_interval_ms: int
    """Time after which a checkpoint moves records to segments."""
    cold_memory_bytes: Size
    """Memory for records from the object store."""
    cold_timeout_ms: int
    """How long a read waits for the object store."""
    default_durability: Literal["ephemeral", "memory", "disk", "fsync"]
    """Class of topics that are created without one: `ephemeral`, `memory`, `disk` or `fsync`."""
    ephemeral_bytes: Size
    """Bytes of all records of class `ephemeral`."""
    hot_retain_bytes: Size
    """Bytes of the newest segments of a topic that stay on the disk; 0: no bound of bytes."""
    hot_retain_segments: int
    """Newest segments of a topic whose records stay on the disk."""
    io_backend: Literal["auto", "posix", "uring"]
    """`posix` or `uring`; `auto` selects the faster one in measurements, currently `posix`.
    The bytes on disk are the same.
    """
    max_batch_records: int
    """Most records of a write over HTTP."""
    max_claim: int
    """Most jobs of a claim or a peek."""
    max_consumers: int
    """Most consumers of all topics."""
    max_embedded_batch_bytes: Size
    """Most payload bytes of a write in process, at most 1 GiB."""
    max_embedded_batch_records: int
    """Most records of a write in process."""
    max_embedded_record_bytes: Size
    """Most bytes of `data` and `meta` of a record written in process."""
    max_idempotency_keys: int
    """Most stored idempotency keys."""
    max_limit: int
    """Most records of a read over HTTP."""
    max_meta_bytes: Size
    """Most bytes of a record's `meta`."""
    max_node_bytes: Size
    """Most bytes of a record's `node`."""
    max_open_files: int
    """Most files of segments that stay open; 0: as many as the process limit allows."""
    max_record_bytes: Size
    """Most bytes of `data` and `meta` of a record written over HTTP."""
    max_routers: int
    """Most routers."""
    max_tag_bytes: Size
    """Most bytes of a record's `tag`."""
    max_topics: int
    """Most topics."""
    max_total_bytes: Size
    """Most payload bytes of all topics, of records that are kept."""
    max_txn_writers: int
    """Most transaction writers whose last epoch is remembered."""
    max_txn_writers_per_key: int
    """Most transaction writers of one API key."""
    max_watch_sessions: int
    """Most watch sessions."""
    max_watch_topics: int
    """Most topics and patterns of a watch over HTTP."""
    memory_bytes: Size
    """Memory for the index of records that are in no segment: above it a checkpoint starts
    early, above twice as much writes wait.
    """
    pack_bytes: Size
    """Size of an object of the object store, which holds several segments."""
    recovery: Literal["strict", "salvage"]
    """`strict` refuses a damaged directory; `salvage` opens it without the damaged parts and
    reports the losses.
    """
    remote_base_interval_ms: int
    """Time between two bases while something is written."""
    remote_interval_ms: int
    """Time between two rounds of the log; 0: bases only."""
    remote_single_writer: bool
    """No other process writes to the prefix: its server is not probed."""
    remote_url: str
    """The object store for old segments and backups, `s3://bucket/prefix` or
    `file:///directory`.
    """
    remote_wal_bytes: Size
    """Log that waits to be shipped, above which it is given up and a new base begins."""
    remote_window_ms: int | Literal["never"]
    """How far back a state can be restored; 0: the newest base only; `never`: nothing is
    deleted from the object store.
    """
    segment_max_age_ms: int
    """Age at which a segment is sealed if that helps expiry; 0: never."""
    segment_max_bytes: Size
    """Most bytes of a segment."""
    segment_max_events: int
    """Most records of a segment."""
    staging_bytes: Size
    """Bytes that each shard accepts before they are written."""
    staging_frames: int
    """Records that each shard accepts before they are written."""
    staging_wait_ms: int
    """How long a write waits for staging space."""
    sync_interval_ms: int
    """How long records of class `disk` stay unsynced."""
    tail_cache_bytes: Size
    """Memory for the newest records, for readers near the head."""
    txn_bytes: Size
    """Most bytes staged for transactions; 0: as the disk has space."""
    txn_ttl_ms: int
    """How long staged rows wait for their commit."""
    txn_writer_ttl_ms: int
    """Idle time after which a transaction writer may be removed for a new one; never while
    it has staged rows.
    """
    url: str
    """The server's address, which its lock file shows to other processes."""
    wal_file_max: Size
    """Size of a shard's largest log file, at most 2 GiB; 0: 64 MiB, less with many shards."""
    wal_file_min: Size
    """Size of a shard's first log file; the next ones double. At most 2 GiB."""
    wal_max_bytes: Size
    """Size of the log above which writes are refused."""
    wal_shards: int
    """Number of logs that topics are distributed over; 0: one per processor, at most 8."""


class ServerSettings(Settings, total=False):
    """The settings of a server: of `topics_engine.testing.Server`."""

    allow_insecure_no_auth: bool
    """Serve others without keys."""
    api_keys: str
    """Keys, scopes and prefixes of clients."""
    api_keys_file: str
    """Regular file of further keys: an entry a line, `#` begins a comment."""
    audit_log: str
    """File of administrative requests and refused keys; `-` writes them into the log."""
    backup_dir: str
    """Directory, or URL of a prefix of an object store, below which clients with scope
    `admin` may have backups made.
    """
    body_timeout_ms: int
    """How long a request body may take to arrive."""
    cors_origins: str
    """Origins of web pages that may send requests and read answers, separated by commas;
    `*`: every one.
    """
    header_timeout_ms: int
    """How long request headers may take to arrive."""
    host: str
    """Address to listen on, or `host:port` (`[::1]:4000`)."""
    hot_protocol: bool
    """Serve hot requests in the native protocol."""
    idle_timeout_ms: int
    """How long a connection is kept without a request."""
    log_format: Literal["text", "json"]
    """`text`, or `json`: a JSON object a line."""
    log_level: Literal["debug", "info", "warning", "error", "critical"]
    """Messages below it are left out: `debug`, `info`, `warning`, `error`, `critical`."""
    max_body_bytes: Size
    """Largest request body, and what a compressed one may decompress to."""
    max_inflight_per_key: int
    """Most open requests of one key; 0: no limit."""
    max_receiving_bytes: Size
    """Most bytes of all request bodies that are being received, at least `max_body_bytes`;
    0: no limit.
    """
    max_sse_connections: int
    """Most open event streams and sockets; 0: no limit."""
    max_sse_connections_per_key: int
    """Most open event streams and sockets of one key; 0: no limit."""
    max_streams_per_connection: int
    """Most open requests of an HTTP/2 connection."""
    max_unsent_bytes: Size
    """Most bytes of all answers and events that clients have not taken yet; 0: no limit."""
    probe_auth: bool
    """Health and readiness need a key too."""
    shutdown_timeout_ms: int
    """How long a shutdown waits for open requests."""
    stall_timeout_ms: int
    """How long a client may read none of the data sent to it."""
    tls_cert: str
    """Certificate file (PEM); the server then speaks TLS only."""
    tls_key: str
    """File of the certificate's key, where the certificate's file does not hold it."""
    trace_context: bool
    """Records keep the trace context of the request that wrote them."""
    trusted_proxies: str
    """Addresses or networks of proxies whose `X-Forwarded-For` is believed, separated by commas."""


class ScanOptions(TypedDict, total=False):
    """The range and the columns of `db.scan`."""

    after: int | Start | Literal["earliest"]
    """A cursor: records after this seq; or EARLIEST."""
    to_seq: int
    """The last record, the head unless given."""
    columns: Sequence[str]
    """Only these, in the schema's order."""
    schema: Schema
    """Typed columns, by name: `{"user": "int64"}`; without `columns` they replace `data`."""
    data_type: Literal["string", "binary"]
    """The type of `data`; as the first record is unless given."""
    compression: Literal["lz4", "zstd"]
    """The codec of what a server sends, none unless given; without a network it has no effect."""
    exclude_nodes: str | Sequence[str]
    """Records of these nodes are skipped."""
    nodes: str | Sequence[str]
    """Only records of these nodes."""
    tag: str
    """Only records with this tag; "eu:*" selects tags by prefix."""
    since: Since
    """Only records committed at or after this time."""
    until: Since
    """Only records committed before this time."""
    strong: bool
    """Only what has been synced."""
    topic_id: int
    """The id that the cursor was made with."""


class SplitOptions(TypedDict, total=False):
    """The range and the sizes of `db.split`."""

    to_seq: int
    """The last record, the head unless given."""
    after: int | Start | Literal["earliest"]
    """A cursor: records after this seq; or EARLIEST."""
    max_records: int
    """Records of a part, 1000000 unless given."""
    max_bytes: Size
    """Payload bytes of a part, 256 MiB unless given."""


KINDS: Final[Mapping[str, tuple[str, ...]]] = {
    "auto_create": ("flag",),
    "auto_priority": ("flag",),
    "cap_bytes": ("size",),
    "cap_records": ("count",),
    "claim_jitter": ("duration",),
    "dead_letter": ("name?",),
    "dedupe_node": ("flag",),
    "discard": ("words", "old", "reject"),
    "durability": ("words", "ephemeral", "memory", "disk", "fsync"),
    "durable": ("flag",),
    "idempotency_window": ("duration",),
    "lease": ("duration",),
    "leases_durable": ("flag",),
    "max_deliveries": ("count",),
    "paused": ("flag",),
    "priority": ("integer?",),
    "retry_backoff": ("duration",),
    "ttl": ("duration",),
    "type": ("words", "log", "queue"),
}
"""The kind of each option of a topic, and the words of `words`."""


SYNONYMS: Final[Mapping[str, str]] = {
    "ack_timeout": "lease",
    "dedup_window": "idempotency_window",
    "dlq": "dead_letter",
    "expire": "ttl",
    "max_age": "ttl",
    "max_age_ms": "ttl",
    "max_attempts": "max_deliveries",
    "max_bytes": "cap_bytes",
    "max_len": "cap_records",
    "max_messages": "cap_records",
    "max_records": "cap_records",
    "max_retries": "max_deliveries",
    "max_size": "cap_bytes",
    "maxlen": "cap_records",
    "retention": "ttl",
    "retention_bytes": "cap_bytes",
    "retention_ms": "ttl",
    "retry_delay": "retry_backoff",
    "visibility_timeout": "lease",
}
"""What other systems call an option of a topic, and the option."""


SERVER: Final = frozenset(
    {
        "allow_insecure_no_auth",
        "api_keys",
        "api_keys_file",
        "audit_log",
        "backup_dir",
        "body_timeout_ms",
        "cors_origins",
        "header_timeout_ms",
        "host",
        "hot_protocol",
        "idle_timeout_ms",
        "log_format",
        "log_level",
        "max_body_bytes",
        "max_inflight_per_key",
        "max_receiving_bytes",
        "max_sse_connections",
        "max_sse_connections_per_key",
        "max_streams_per_connection",
        "max_unsent_bytes",
        "port",
        "probe_auth",
        "shutdown_timeout_ms",
        "stall_timeout_ms",
        "tls_cert",
        "tls_key",
        "trace_context",
        "trusted_proxies",
    }
)
"""The names of the settings of a server."""
