"""Topics: an embeddable, durable log engine.

import topics_engine as te

with te.open("./topics-data") as db:
    orders = db.topic("orders", durability="fsync")
    orders.append([{"id": 1}, {"id": 2}], tag="eu:7", idempotency_key="batch-7")
    for item in orders.read(after=0):
        match item:
            case te.Record(seq=s, data=d): ...
            case te.Gap(first=a, last=b, reason=r): ...
"""

import sys as _sys
from typing import TYPE_CHECKING as _TYPE_CHECKING

if _sys.platform == "win32":
    raise ImportError("topics_engine runs on Linux, and on macOS for development; not on Windows")

from ._core import __version__
from .client import (
    EARLIEST,
    LATEST,
    Ack,
    Backup,
    CaughtUp,
    Committed,
    Consumer,
    ConsumerBatch,
    ConsumerInfo,
    Database,
    Deleted,
    Gap,
    Job,
    NewRecord,
    PeekedJob,
    Queue,
    QueueState,
    Read,
    Record,
    Restored,
    Router,
    RouterInfo,
    Split,
    Topic,
    TopicDeleted,
    TopicInfo,
    TopicState,
    Transaction,
    Verification,
    Watch,
    Work,
    clone,
    restore,
    verify,
)
from .client import open_database as open
from .errors import (
    AlreadyExists,
    Closed,
    Conflict,
    ConsumerFenced,
    Corrupt,
    DataLoss,
    Forbidden,
    Full,
    HeadMismatch,
    IdempotencyMismatch,
    InvalidRequest,
    LeaseLost,
    Locked,
    NotFound,
    Throttled,
    TimedOut,
    TopicsError,
    Unauthorized,
    Unavailable,
    Unreachable,
)

if _TYPE_CHECKING:
    from . import aio, duckdb, otel
    from .options import (
        QueueConfig,
        ScanOptions,
        ServerSettings,
        Settings,
        SplitOptions,
        TopicConfig,
    )
    from .remote import connect

__all__ = [
    "EARLIEST",
    "LATEST",
    "Ack",
    "AlreadyExists",
    "Backup",
    "CaughtUp",
    "Closed",
    "Committed",
    "Conflict",
    "Consumer",
    "ConsumerBatch",
    "ConsumerFenced",
    "ConsumerInfo",
    "Corrupt",
    "DataLoss",
    "Database",
    "Deleted",
    "Forbidden",
    "Full",
    "Gap",
    "HeadMismatch",
    "IdempotencyMismatch",
    "InvalidRequest",
    "Job",
    "LeaseLost",
    "Locked",
    "NewRecord",
    "NotFound",
    "PeekedJob",
    "Queue",
    "QueueConfig",
    "QueueState",
    "Read",
    "Record",
    "Restored",
    "Router",
    "RouterInfo",
    "ScanOptions",
    "ServerSettings",
    "Settings",
    "Split",
    "SplitOptions",
    "Throttled",
    "TimedOut",
    "Topic",
    "TopicConfig",
    "TopicDeleted",
    "TopicInfo",
    "TopicState",
    "TopicsError",
    "Transaction",
    "Unauthorized",
    "Unavailable",
    "Unreachable",
    "Verification",
    "Watch",
    "Work",
    "__version__",
    "aio",
    "clone",
    "connect",
    "duckdb",
    "open",
    "otel",
    "restore",
    "verify",
]


_OPTIONS = frozenset(
    {"QueueConfig", "ScanOptions", "ServerSettings", "Settings", "SplitOptions", "TopicConfig"}
)


def __getattr__(name: str) -> object:
    """What not every program uses: asyncio and ssl are loaded with `aio` and `connect`."""
    import importlib

    if name in ("aio", "duckdb", "otel"):
        return importlib.import_module(f".{name}", __name__)
    if name == "connect":
        found = globals()[name] = importlib.import_module(".remote", __name__).connect
        return found
    if name in _OPTIONS:
        return getattr(importlib.import_module(".options", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
