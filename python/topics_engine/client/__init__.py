"""The client: handles and values, the same whether the engine is in this process or not."""

from .consumer import Consumer, ConsumerBatch, ConsumerInfo
from .database import Database, open_database, verify
from .queue import Job, PeekedJob, Queue, Work
from .read import Read
from .router import Router
from .topic import Topic
from .transaction import Committed, Transaction
from .values import (
    EARLIEST,
    TAIL,
    Ack,
    CaughtUp,
    Deleted,
    Gap,
    New,
    Record,
    RouterInfo,
    Start,
    TopicDeleted,
    TopicInfo,
    TopicState,
    Verification,
)
from .watch import Watch

__all__ = [
    "EARLIEST",
    "TAIL",
    "Ack",
    "CaughtUp",
    "Committed",
    "Consumer",
    "ConsumerBatch",
    "ConsumerInfo",
    "Database",
    "Deleted",
    "Gap",
    "Job",
    "New",
    "PeekedJob",
    "Queue",
    "Read",
    "Record",
    "Router",
    "RouterInfo",
    "Start",
    "Topic",
    "TopicDeleted",
    "TopicInfo",
    "TopicState",
    "Transaction",
    "Verification",
    "Watch",
    "Work",
    "open_database",
    "verify",
]
