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
    checkpoint_bytes: Size
    checkpoint_interval_ms: int
    cold_memory_bytes: Size
    cold_timeout_ms: int
    default_durability: str
    delete_grace_ms: int
    ephemeral_bytes: Size
    hot_retain_bytes: Size
    hot_retain_segments: int
    io_backend: str
    max_batch_records: int
    max_claim: int
    max_consumers: int
    max_embedded_batch_bytes: Size
    max_embedded_batch_records: int
    max_embedded_record_bytes: Size
    max_idempotency_keys: int
    max_limit: int
    max_meta_bytes: Size
    max_node_bytes: Size
    max_open_files: int
    max_record_bytes: Size
    max_routers: int
    max_tag_bytes: Size
    max_topics: int
    max_total_bytes: Size
    max_txn_writers: int
    max_txn_writers_per_key: int
    max_watch_sessions: int
    max_watch_topics: int
    memory_bytes: Size
    pack_bytes: Size
    pack_max_wait_ms: int
    recovery: str
    remote: str
    remote_single_writer: bool
    remote_url: str
    restore_window_ms: int
    segment_max_age_ms: int
    segment_max_bytes: Size
    segment_max_events: int
    ship_interval_ms: int
    ship_max_lag_bytes: Size
    staging_bytes: Size
    staging_frames: int
    staging_wait_ms: int
    sync_interval_ms: int
    tail_cache_bytes: Size
    txn_bytes: Size
    txn_ttl_ms: int
    txn_writer_ttl_ms: int
    url: str
    wal_file_max: Size
    wal_file_min: Size
    wal_max_bytes: Size
    wal_shards: int


class ServerSettings(Settings, total=False):
    """The settings of a server: of `topics_engine.testing.Server`."""

    allow_insecure_no_auth: bool
    api_keys: str
    api_keys_file: str
    audit_log: str
    backup_dir: str
    body_timeout_ms: int
    cors_origins: str
    header_timeout_ms: int
    host: str
    hot_protocol: bool
    idle_timeout_ms: int
    log_format: str
    log_level: str
    max_body_bytes: Size
    max_inflight_per_key: int
    max_receiving_bytes: Size
    max_sse_connections: int
    max_sse_connections_per_key: int
    max_streams_per_connection: int
    max_unsent_bytes: Size
    probe_auth: bool
    shutdown_timeout_ms: int
    stall_timeout_ms: int
    tls_cert: str
    tls_key: str
    trace_context: bool
    trusted_proxies: str


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
