"""Topics, queues, consumers and routers that the tests and the screenshots show."""

from __future__ import annotations

import random

import topics_engine as te
from support.waiting import until

ADMIN = "admin-key"
KEYS = f"{ADMIN},reader-key:r,writer-key:rw,deleter-key:rd,limited-key:r:orders,write-only:w"
VIEWS = {
    "topics": "#/topics",
    "topic": "#/topics/orders",
    "queues": "#/queues",
    "queue": "#/queues/mails",
    "consumers": "#/consumers",
    "engine": "#/engine",
}
ERROR = "SMTP 550: no such mailbox"
REMOTE = {
    "TOPICS_HOT_RETAIN_SEGMENTS": "1",
    "TOPICS_SEGMENT_MAX_EVENTS": "10",
    "TOPICS_REMOTE_BASE_INTERVAL_MS": "100",
    "TOPICS_PACK_BYTES": "2000",
}
"""Settings with which few records fill packs; besides the address of a store."""


def fill(url: str, key: str | None = ADMIN) -> None:
    """Fills an empty server."""
    source = random.Random(7)
    with te.connect(url, key) as db:
        orders = db.topic("orders", durability="fsync")
        orders.create()
        db.router("orders.audit", source="orders", dest="orders.audit")
        for start in range(0, 400, 10):
            orders.append([_order(n, source) for n in range(start, start + 10)],
                          tag=source.choice(["eu:7", "eu:9", "us:1"]), origin="shop-1")  # fmt: skip
        billing = orders.consumer("billing")
        billing.commit(250)
        orders.consumer("search")
        clicks = db.topic("clicks", durability="memory", cap_records=500)
        clicks.append([{"page": f"/product/{n}", "user": n % 37} for n in range(500)])
        lossy(db)
        mails = db.queue("mails", max_deliveries=2, lease="10m")
        mails.append([{"to": f"user{n}@example.com", "template": "welcome"} for n in range(12)])
        mails.append([{"to": "later@example.com", "template": "reminder"}] * 3, delay="10m")
        for _ in range(2):
            for job in mails.claim("worker-0", max=2):
                job.nack(delay=0, error=ERROR)
        mails.claim("worker-1", max=3)


def archive(db: te.Database) -> None:
    """Writes a topic until the server, which has a remote, has archived a part of it."""
    history = db.topic("history", durability="disk")

    def archived() -> bool:
        history.append([{"n": n} for n in range(30)])
        db.checkpoint()
        return bool(db.metrics()["packs"])

    until(archived, 120)


def lossy(db: te.Database) -> None:
    """A topic of which the oldest records were evicted before a reader saw them."""
    sensor = db.topic("sensors", cap_records=40)
    for start in range(0, 120, 20):
        sensor.append([{"sensor": n % 4, "celsius": 20 + n / 10} for n in range(start, start + 20)])


def _order(n: int, source: random.Random) -> dict[str, object]:
    return {
        "id": n,
        "customer": f"c{source.randrange(900)}",
        "total": round(source.random() * 200, 2),
        "items": [{"sku": f"A-{source.randrange(99)}", "count": source.randrange(1, 5)}],
        "paid": source.random() < 0.8,
    }
