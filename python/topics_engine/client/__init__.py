"""The client: handles and values, the same whether the engine is in this process or not."""

from .arguments import EARLIEST, LATEST, Start
from .consumer import Consumer, ConsumerBatch, ConsumerInfo
from .database import Database, clone, open_database, restore, verify
from .queue import Job, PeekedJob, Queue, Work
from .read import Read
from .router import Router
from .topic import Topic
from .transaction import Committed, Transaction
from .values import (
    Ack,
    Backup,
    CaughtUp,
    Deleted,
    Gap,
    NewRecord,
    QueueState,
    Record,
    Restored,
    RouterInfo,
    Split,
    TopicDeleted,
    TopicInfo,
    TopicState,
    Verification,
)
from .watch import Watch

__all__ = [
    "EARLIEST",
    "LATEST",
    "Ack",
    "Backup",
    "CaughtUp",
    "Committed",
    "Consumer",
    "ConsumerBatch",
    "ConsumerInfo",
    "Database",
    "Deleted",
    "Gap",
    "Job",
    "NewRecord",
    "PeekedJob",
    "Queue",
    "QueueState",
    "Read",
    "Record",
    "Restored",
    "Router",
    "RouterInfo",
    "Split",
    "Start",
    "Topic",
    "TopicDeleted",
    "TopicInfo",
    "TopicState",
    "Transaction",
    "Verification",
    "Watch",
    "Work",
    "clone",
    "open_database",
    "restore",
    "verify",
]
