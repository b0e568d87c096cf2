"""Programs as users write them. Each line that is marked has one mistake in an option."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import topics_engine as te
from topics_engine.testing import Server


def open_and_append() -> int:
    with te.open("./data", max_open_files=256) as db:
        orders = db.topic("orders", durability="fsync", ttl="7d")
        ack = orders.append([{"id": 1}, {"id": 2}], tag="eu:7", idempotency_key="batch-7")
        return ack.last_seq


def open_with_a_misspelt_setting() -> None:
    te.open("./data", max_open_file=256).close()  # mistake


def open_with_a_wrong_setting() -> None:
    te.open("./data", max_topics="many").close()  # mistake


def read_all(orders: te.Topic) -> Iterator[object]:
    for item in orders.read(after=0):
        match item:
            case te.Record(seq=s, data=d):
                yield s, d
            case te.Gap(first=a, last=b, reason=r):
                yield a, b, r


def read_recent(orders: te.Topic) -> list[str | None]:
    start = datetime(2026, 1, 1, tzinfo=UTC)
    recent = orders.read(since=start, until="1h", tag="eu:*", exclude_nodes=["a", "b"])
    return [item.tag for item in recent if isinstance(item, te.Record)]


def seqs_and_gaps(orders: te.Topic) -> list[int]:
    return [item.seq for item in orders.read()]  # mistake


def seqs(orders: te.Topic, gaps_raise: bool) -> list[int]:
    found = [record.seq for record in orders.read(gaps="raise" if gaps_raise else "skip")]
    for records in orders.read(gaps="skip", limit=7).batches():
        found += [record.seq for record in records]
    return found


def read_with_an_old_name(orders: te.Topic) -> None:
    orders.read(after=0, upto=7).close()  # mistake


def read_with_a_wrong_word(orders: te.Topic) -> None:
    orders.read(gaps="ignore").close()  # mistake


def read_from_a_wrong_place(orders: te.Topic) -> None:
    orders.read(after="start").close()  # mistake


def misspelt_durability(db: te.Database) -> te.Topic:
    return db.topic("orders", durabilty="fsync")  # mistake


def unknown_durability(db: te.Database) -> te.Topic:
    return db.topic("orders", durability="fast")  # mistake


def option_with_its_old_name(db: te.Database) -> te.Topic:
    return db.topic("orders", ttl_ms=1000)  # mistake


def tighten(db: te.Database) -> te.TopicState:
    return db.topic("logs").create(cap_bytes="1GiB", ttl=timedelta(days=7), discard="old")


def tighten_wrongly(db: te.Database) -> te.TopicState:
    return db.topic("logs").create(cap_records="1 GiB")  # mistake


def a_queue(db: te.Database) -> te.Queue:
    return db.queue("jobs", lease="90s", max_deliveries=5, dead_letter="jobs.dead", paused=False)


def a_queue_with_a_typo(db: te.Database) -> te.Queue:
    return db.queue("jobs", max_delivery=5)  # mistake


def a_queue_of_type_log(db: te.Database) -> te.Queue:
    return db.queue("jobs", type="log")  # mistake


def work(jobs: te.Queue) -> int:
    done = 0
    for job in jobs.claim("worker-1", max=16, wait=5, lease="30s"):
        with job:
            print(job.data, job.tag, job.meta, job.time, job.deliveries)
            done += 1
    return done


def work_without_a_name(jobs: te.Queue) -> list[te.Job]:
    return jobs.claim(node="worker-1")  # mistake


def enqueue(jobs: te.Queue) -> None:
    jobs.append({"to": "a"}, lane=0, group="customer-7", delay="1m")
    jobs.append([te.NewRecord({"to": "b"}, deliver_at=datetime.now(UTC)), {"to": "c"}])


def enqueue_wrongly(jobs: te.Queue) -> None:
    jobs.append({"to": "a"}, lane="first")  # mistake


def a_record_with_an_old_name() -> te.NewRecord:
    return te.NewRecord(1, node="w")  # mistake


def fail_job(job: te.Job) -> bool:
    return job.nack(delay=timedelta(seconds=30))


def fail_job_wrongly(job: te.Job) -> bool:
    return job.nack(delay_ms=30)  # mistake


def consume(orders: te.Topic) -> None:
    for batch in orders.consumer("billing", start=te.EARLIEST).batches(wait="5s"):
        for item in batch:
            print(item)
        batch.commit()


def consume_from_the_end(orders: te.Topic) -> te.Consumer:
    return orders.consumer("billing", start="end")  # mistake


def follow(db: te.Database) -> None:
    with db.watch({"orders": te.LATEST, "events": 88130}, exclude_nodes="worker-1") as watch:
        for event in watch:
            print(event.topic)


def follow_records(db: te.Database) -> int:
    with db.watch("orders", gaps="skip", tag="eu:*") as watch:
        record = watch.next(wait=5)
        return next(watch).seq if record is None else record.seq


def follow_events_as_records(db: te.Database) -> int:
    with db.watch("orders", gaps="skip", events=True) as watch:
        return len(next(watch).raw)  # mistake


async def follow_records_of_a_server() -> list[int]:
    async with te.aio.connect("http://127.0.0.1:4000") as db:
        found = [record.seq async for record in db.topic("orders").read(gaps="raise")]
        async with db.watch("orders", gaps="raise") as watch:
            return [*found, (await anext(watch)).seq]


def how_many(db: te.Database) -> int:
    return db.queue("jobs").state().queue["ready"] + len(db.settings)


def how_many_of_a_topic(db: te.Database) -> int:
    return db.topic("jobs").state().queue["ready"]  # mistake


def follow_wrongly(db: te.Database) -> te.Watch:
    return db.watch("orders", match="eu:*")  # mistake


def copy(db: te.Database) -> te.RouterInfo:
    return db.router("audit", source="orders", dest="audit", tag="eu:*").state()


def copy_wrongly(db: te.Database) -> te.Router:
    return db.router("audit", "orders", "audit", guarantee="exactly-once")  # mistake


def all_or_nothing(db: te.Database, job: te.Job, consumer: te.Consumer) -> te.Committed:
    with db.transaction(idempotency_key="run-7") as tx:
        tx.append("out", [1, 2], expect_head=41)
        tx.commit(consumer, 7)
        tx.ack(job)
    return tx.result


def names(db: te.Database) -> list[str]:
    return [name for name in db if name.startswith("orders")] if "orders" in db else []


def clean_up(db: te.Database) -> int:
    return db.topic("orders").delete(before=1000, tag="eu:*").deleted


def clean_up_wrongly(db: te.Database) -> te.Deleted:
    return db.topic("orders").delete(match="eu:*")  # mistake


async def remote() -> None:
    async with te.aio.connect("http://127.0.0.1:4000", api_key="k", deadline=5) as db:
        orders = db.topic("orders", durability="disk")
        await orders.append({"id": 1}, idempotency_key="order-1", block=False)
        async for item in orders.read(after=te.EARLIEST):
            print(item)


async def asyncio_with_a_typo(db: te.aio.Database) -> None:
    await db.topic("orders").append({"id": 1}, idempotency="order-1")  # mistake


async def asyncio_queue(db: te.aio.Database) -> None:
    jobs = await db.queue("jobs", lease="1m")
    for job in await jobs.claim("worker-1", wait="5s"):
        async with job:
            print(job.data)


async def asyncio_queue_with_a_typo(db: te.aio.Database) -> None:
    await db.queue("jobs", leese="1m")  # mistake


def a_server() -> str:
    with Server("data", api_keys="secret:rwa", max_topics=10) as server:
        return server.url


def sync_waits(orders: te.Topic) -> bool:
    return orders.wait(0, timeout=timedelta(seconds=5))
