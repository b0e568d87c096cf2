"""The client for asyncio: the same handles, with verbs that are awaited.

async with te.aio.open("./topics-data") as db:
    orders = db.topic("orders", durability="fsync")
    await orders.append([{"id": 1}, {"id": 2}], idempotency_key="batch-7")
    async for item in orders.read(after=0): ...
    async for item in db.watch({"orders": te.LATEST}): ...
"""

from .consumer import Consumer
from .database import Connecting, Database, Opening, clone, connect, open, restore, verify
from .queue import Job, Queue, Work
from .read import Read
from .router import Router
from .topic import Topic
from .transaction import Transaction
from .watch import Watch

__all__ = [
    "Connecting",
    "Consumer",
    "Database",
    "Job",
    "Opening",
    "Queue",
    "Read",
    "Router",
    "Topic",
    "Transaction",
    "Watch",
    "Work",
    "clone",
    "connect",
    "open",
    "restore",
    "verify",
]
