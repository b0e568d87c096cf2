"""The client: handles and values, the same whether the engine is in this process or not."""

from .database import Database, open_database, verify
from .reading import Read
from .topic import Topic
from .values import (
    EARLIEST,
    TAIL,
    Ack,
    Deleted,
    Gap,
    New,
    Record,
    Start,
    TopicInfo,
    TopicState,
    Verification,
)

__all__ = [
    "EARLIEST",
    "TAIL",
    "Ack",
    "Database",
    "Deleted",
    "Gap",
    "New",
    "Read",
    "Record",
    "Start",
    "Topic",
    "TopicInfo",
    "TopicState",
    "Verification",
    "open_database",
    "verify",
]
