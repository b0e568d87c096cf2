"""The client: handles and values, the same whether the engine is in this process or not."""

from .consumer import Consumer, ConsumerBatch
from .database import Database, open_database, verify
from .queue import Job, Queue
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
    "Consumer",
    "ConsumerBatch",
    "Database",
    "Deleted",
    "Gap",
    "Job",
    "New",
    "Queue",
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
