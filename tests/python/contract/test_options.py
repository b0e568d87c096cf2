"""Options apply when a topic is created, and are changed by a verb of their own."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import topics_engine as te
from support.server import Server

from .adapter import all_of, eventually, plain


async def config_of(db: Any, name: str) -> Any:
    return (await db.topic(name).state()).config


async def test_a_handle_writes_whatever_its_options_are_by_now(db: Any) -> None:
    writer = db.topic("orders", ttl="7d", cap_records=100)
    await writer.append(1)
    await db.topic("orders").configure(ttl="30d")
    await writer.append(2)
    await writer.append_batch([b"3"])
    await writer.append([4], idempotency_key="k")
    await db.topic("orders", cap_records=5, discard="reject").append(5)
    config = await config_of(db, "orders")
    assert (config["ttl"], config["cap_records"], config["discard"]) == (30 * 86400.0, 100, "old")
    assert (await writer.state()).head_seq == 5


@pytest.mark.parametrize("options", [{"type": "queue"}, {"durability": "fsync"}, {"durable": True}])
async def test_a_write_that_says_another_type_or_class_conflicts(db: Any, options: Any) -> None:
    await db.topic("t").append(1)
    with pytest.raises(te.Conflict) as caught:
        await db.topic("t", **options).append(2)
    assert (caught.value.code, caught.value.status) == ("topic_exists_incompatible", 409)
    assert (await db.topic("t").state()).head_seq == 1


async def test_a_topic_that_is_created_again_gets_the_options_again(db: Any) -> None:
    t = db.topic("t", cap_records=3)
    await t.append(1)
    await t.drop()
    await t.append(1)
    assert (await config_of(db, "t"))["cap_records"] == 3


async def test_create_refuses_what_exists(db: Any) -> None:
    t = db.topic("t", ttl=60)
    state = await t.create(cap_records=5)
    assert (state.config["ttl"], state.config["cap_records"]) == (60.0, 5)
    for handle in (t, db.topic("t")):
        with pytest.raises(te.AlreadyExists, match="already exists") as caught:
            await handle.create()
        assert (caught.value.code, caught.value.status) == ("already_exists", 409)
        assert caught.value.detail == {"topic": "t"}
    assert await config_of(db, "t") == state.config
    with pytest.raises(te.AlreadyExists):
        await (await db.queue("q")).create(lease="1m")


async def test_ensure_creates_once(db: Any) -> None:
    t = db.topic("t", ttl="7d")
    first = await t.ensure(cap_records=5)
    assert (first.config["ttl"], first.config["cap_records"]) == (7 * 86400.0, 5)
    assert (await t.ensure(cap_records=5)).config == first.config
    assert (await t.ensure()).config == first.config
    assert (await db.topic("t").ensure(ttl=timedelta(days=7))).config == first.config
    assert (await db.topic("t").ensure()).config == first.config


async def test_ensure_names_each_difference_as_it_was_written(db: Any) -> None:
    await db.topic("t", ttl="30d", cap_records=3, durability="fsync").ensure()
    before = await config_of(db, "t")
    with pytest.raises(te.Conflict) as caught:
        await db.topic("t", ttl="7d").ensure(cap_records=5, durability="fsync", dead_letter="x")
    assert caught.value.code == "topic_exists_incompatible"
    assert str(caught.value) == (
        "topic 't' exists with ttl '30d', not '7d', and cap_records 3, not 5, "
        "and dead_letter None, not 'x': "
        "change the topic with configure, or leave these options out"
    )
    assert caught.value.detail["differences"]["ttl"] == {"actual": 2592000.0, "wanted": 604800.0}
    for ttl, text in (
        (90, "ttl 2592000, not 90"),
        (timedelta(hours=1), "datetime.timedelta(days=30), not datetime.timedelta(seconds=3600)"),
        ("1500ms", "'30d', not '1500ms'"),
    ):
        with pytest.raises(te.Conflict) as caught:
            await db.topic("t").ensure(ttl=ttl)
        assert text in str(caught.value)
    with pytest.raises(te.Conflict, match="type 'log', not 'queue': a topic keeps its type"):
        await db.topic("t").ensure(type="queue")
    with pytest.raises(te.Conflict, match="durability 'fsync', not 'disk'"):
        await db.topic("t").ensure(durable=False)
    await db.topic("t").ensure(durable=True)
    assert await config_of(db, "t") == before


async def test_a_value_that_the_engine_limits_is_the_same_the_next_time(db: Any) -> None:
    options: Any = {"lease": 0, "claim_jitter": "1h", "priority": 9999}
    first = await db.topic("q", type="queue", **options).ensure()
    assert (await db.topic("q").ensure(**options)).config == first.config
    assert (first.config["lease"], first.config["priority"]) == (0.1, 1000)


async def test_configure_changes_what_it_names(db: Any) -> None:
    with pytest.raises(te.NotFound) as caught:
        await db.topic("t", ttl=5).configure(cap_records=1)
    assert caught.value.code == "topic_not_found"
    t = db.topic("t", ttl=5)
    await t.append(1)
    state = await t.configure(cap_records=7, durability="fsync")
    config = state.config
    assert (config["ttl"], config["cap_records"], config["durability"]) == (5.0, 7, "fsync")
    assert await config_of(db, "t") == config
    assert (await t.configure()).config == config
    with pytest.raises(te.Conflict, match="a topic keeps its type"):
        await t.configure(type="queue")


async def test_a_queue_is_created_once_and_never_rewritten(db: Any) -> None:
    old = await db.queue("mails", lease="30s")
    new = await db.queue("mails", lease="60s", max_deliveries=3)
    for queue in (old, new):
        await queue.append({"to": "a"})
    config = await config_of(db, "mails")
    assert (config["lease"], config["max_deliveries"]) == (30.0, 0)
    with pytest.raises(te.Conflict, match="lease '30s', not '60s', and max_deliveries 0, not 3"):
        await new.ensure()
    assert (await new.configure(lease="60s")).config["lease"] == 60.0
    await new.pause()
    assert (await config_of(db, "mails"))["paused"]
    await old.resume()
    assert not (await config_of(db, "mails"))["paused"]


async def test_a_queue_is_no_log_and_has_one_class(db: Any) -> None:
    await db.topic("log").append(1)
    with pytest.raises(te.Conflict, match="type 'log', not 'queue'"):
        await db.queue("log")
    await db.queue("jobs", durability="fsync")
    with pytest.raises(te.Conflict, match="durability 'fsync', not 'disk'"):
        await db.queue("jobs", durability="disk")
    await db.topic("gone", type="queue").create()
    await db.topic("gone").drop()
    with pytest.raises(te.NotFound):
        await (await queue_of(db, "gone")).pause()


async def queue_of(db: Any, name: str) -> Any:
    """A handle of a queue that was dropped since."""
    queue = await db.queue(name)
    await queue.drop()
    return queue


async def test_a_consumer_keeps_its_mode_and_its_place(db: Any) -> None:
    t = db.topic("t")
    await t.append([1, 2, 3])
    first = await t.consumer("c", "at_least_once", start="latest")
    assert (await t.consumer("c", start="earliest")).cursor == first.cursor == 3
    with pytest.raises(te.Conflict, match="a consumer keeps its mode"):
        await t.consumer("c", "at_most_once")


async def test_a_router_creates_its_topics_as_their_handles_say(db: Any) -> None:
    source = db.topic("orders", ttl="7d")
    dest = db.topic("orders.audit", durability="fsync")
    await db.router("audit", source=plain(source), dest=plain(dest))
    assert (await config_of(db, "orders"))["ttl"] == 7 * 86400.0
    assert (await config_of(db, "orders.audit"))["durability"] == "fsync"
    await source.append(1)

    async def copied() -> bool:
        return (await dest.state()).head_seq == 1

    await eventually(copied)
    await db.router("named", source="orders", dest="other")
    assert (await config_of(db, "other"))["ttl"] == 0.0
    absent = db.topic("absent", ttl=1)
    with pytest.raises(te.NotFound):
        await db.router("none", source="orders", dest=plain(absent), create_dest=False)
    other = plain(db.topic("orders.audit", durability="disk"))
    with pytest.raises(te.Conflict, match="durability 'fsync', not 'disk'"):
        await db.router("audit", source="orders", dest=other)


async def test_a_transaction_creates_its_topics_as_their_handles_say(db: Any) -> None:
    out = db.topic("out", cap_records=9)
    async with db.transaction() as tx:
        tx.append(plain(out), [1, 2])
        tx.append("plain", 1)
    assert (await config_of(db, "out"))["cap_records"] == 9
    assert (await config_of(db, "plain"))["cap_records"] == 0
    await out.configure(cap_records=5)
    async with db.transaction() as tx:
        tx.append(plain(out), 3)
    assert (await config_of(db, "out"))["cap_records"] == 5
    with pytest.raises(te.Conflict, match="type 'log', not 'queue'"):
        async with db.transaction() as tx:
            tx.append(plain(db.topic("out", type="queue")), 4)
    assert (await out.state()).head_seq == 3


@pytest.mark.parametrize("by", ["queue", "create", "ensure", "append", "append_batch", "configure"])
async def test_dead_letters_go_where_their_handle_says(db: Any, by: str) -> None:
    dead = db.topic("jobs.dead", ttl="30d")
    options: Any = {"dead_letter": plain(dead), "max_deliveries": 1}
    if by == "queue":
        jobs = await db.queue("jobs", **options)
    else:
        jobs = db.topic("jobs", type="queue", **options)
        if by == "append":
            await jobs.append(1)
        elif by == "append_batch":
            await jobs.append_batch([b"1"])
        elif by == "configure":
            await db.topic("jobs", type="queue").create()
            await jobs.configure(**options)
        else:
            await getattr(jobs, by)()
        jobs = await db.queue("jobs")
    assert (await config_of(db, "jobs"))["dead_letter"] == "jobs.dead"
    assert (await config_of(db, "jobs.dead"))["ttl"] == 30 * 86400.0
    await (await db.queue("jobs", **options)).ensure(**options)


async def test_names_of_other_systems_get_a_hint(db: Any) -> None:
    for other, option in (
        ("retention", "ttl"),
        ("max_age", "ttl"),
        ("visibility_timeout", "lease"),
    ):
        with pytest.raises(te.InvalidRequest, match=f"`{other}`; did you mean `{option}`"):
            db.topic("t", **{other: "7d"})


async def test_conflicts_have_classes_and_statuses(db: Any) -> None:
    t = db.topic("t")
    await t.append(1, idempotency_key="k")
    refused: dict[type[te.TopicsError], tuple[Callable[[], Any], str, int]] = {
        te.HeadMismatch: (lambda: t.append(2, expect_head=0), "head_mismatch", 409),
        te.IdempotencyMismatch: (
            lambda: t.append(2, idempotency_key="k"),
            "idempotency_mismatch",
            409,
        ),
        te.AlreadyExists: (t.create, "already_exists", 409),
        te.NotFound: (db.topic("none").state, "topic_not_found", 404),
    }
    for kind, (call, code, status) in refused.items():
        with pytest.raises(kind) as caught:
            await call()
        assert type(caught.value) is kind
        assert (caught.value.code, caught.value.status) == (code, status)
        assert isinstance(caught.value, te.Conflict) == (status == 409)
    with pytest.raises(te.InvalidRequest) as wrong:
        await t.create(ttl="soon")
    assert wrong.value.status == 400


@pytest.fixture
def keyed(tmp_path: Path) -> Any:
    with Server(tmp_path / "keyed", env={"TOPICS_API_KEYS": "root,worker:rw,writer:write"}) as live:
        yield live
        assert live.stop() == 0


async def test_a_key_that_may_not_create_writes_to_what_exists(
    keyed: Server, connect: Callable[..., Any]
) -> None:
    async with connect(keyed.url, api_key="root") as db:
        await db.queue("jobs")
        await db.topic("orders", durability="fsync", ttl="7d").create()
    async with connect(keyed.url, api_key="worker") as db:
        jobs = await db.queue("jobs", lease="5s")
        await jobs.append([1, 2], idempotency_key="k")
        await jobs.append_batch([b"3"])
        assert len(await jobs.claim("w", max=3)) == 3
        orders = db.topic("orders", durability="fsync", ttl="1d")
        await orders.append(1)
        async with db.transaction() as tx:
            tx.append(plain(orders), 2)
        await db.topic("orders", ttl="7d").ensure()
        with pytest.raises(te.Conflict, match="ttl '7d', not '1d'"):
            await orders.ensure()
        with pytest.raises(te.Conflict):
            await db.topic("orders", durability="disk").append(1)
        for refused in (
            lambda: db.topic("new", ttl="7d").append(1),
            lambda: db.topic("new", ttl="7d").append(1, block=False),
            lambda: db.topic("new").create(),
            lambda: db.topic("new").ensure(),
            lambda: db.queue("new"),
            lambda: orders.configure(ttl="1d"),
        ):
            with pytest.raises(te.Forbidden, match="scope `admin`") as caught:
                await refused()
            assert caught.value.status == 403
        with pytest.raises(te.NotFound):
            await db.topic("new", ttl="7d").append(1, create=False)
        assert [info.topic for info in await all_of(db.topics())] == ["jobs", "orders"]
        await db.topic("new").append(1)
    async with connect(keyed.url, api_key="writer") as db:
        await (await db.queue("jobs", lease="5s")).append(4)
        await db.topic("orders", ttl="1d").append(3)


def test_a_database_in_memory_has_one_class_for_what_names_none() -> None:
    with te.open(":memory:") as db:
        synced = db.topic("synced", durability="fsync")
        synced.append(1)
        db.topic("synced").append(2)
        db.topic("t", ttl="1h").append(1)
        db.topic("t").ensure()
        db.router("r", source="t", dest="copy")
        with db.transaction() as tx:
            tx.append("rows", 1)
        classes = {info.topic: info.durability for info in db.topics()}
    assert classes == {"synced": "fsync", "t": "memory", "copy": "memory", "rows": "memory"}


def test_the_class_of_a_topic_that_names_none_is_a_setting(tmp_path: Path) -> None:
    with te.open(tmp_path / "data", default_durability="fsync") as db:
        assert db.topic("t").append(1).durability == "fsync"
        assert db.topic("u").create().config["durability"] == "fsync"
        assert db.topic("v").create(durability="disk").config["durability"] == "disk"
    with te.open(tmp_path / "data") as db:
        assert db.topic("t").append(1).durability == "fsync"
        assert db.topic("w").append(1).durability == "disk"
    with pytest.raises(
        te.InvalidRequest, match="'safe' is not one of ephemeral, memory, disk, fsync"
    ):
        te.open(tmp_path / "data", default_durability="safe")
