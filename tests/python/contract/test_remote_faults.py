"""Remote clients: what is lost, refused or late on the way."""

from __future__ import annotations

import asyncio
import json
import ssl
import subprocess
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import topics_engine as te
from support.faulty_server import Break, Cut, Faulty, Hang, Lose, Refuse, in_front_of
from support.server import Server
from topics_engine.remote import caller

from .adapter import all_of, connected_to, datas, eventually, plain, take, until_calls_wait

NOT_READY = b'{"error":{"code":"not_ready","message":"recovering","detail":{}}}'
FOREVER = 3600.0
"""Seconds that no test takes: what waits for them hangs."""


def backend_of(db: Any) -> Any:
    handle = plain(db)
    return getattr(handle, "_sync", handle)._backend


async def test_what_was_carried_out_is_not_done_twice(
    faulty: Faulty, connect: Any, name: str
) -> None:
    async with connect(faulty.url) as db:
        faulty.fail(Lose(), Break(), Lose())
        ack = await db.topic(name).append([1, 2])
        assert (ack.first_seq, ack.last_seq, ack.deduped) == (1, 2, False)
        assert len(faulty.requests) == 4
        assert datas(await all_of(db.topic(name).read())) == [1, 2]


async def test_a_creation_whose_answer_was_lost(faulty: Faulty, connect: Any, name: str) -> None:
    async with connect(faulty.url) as db:
        # The repeat finds the topic, which may be that of another client.
        faulty.fail(Lose(), matching="create=true")
        with pytest.raises(
            te.AlreadyExists, match="answer was lost, may have created it"
        ) as caught:
            await db.topic(name).create(ttl="7d")
        assert caught.value.detail == {"topic": name, "outcome": "unknown"}
        with pytest.raises(te.AlreadyExists) as caught:
            await db.topic(name).create()
        assert caught.value.detail == {"topic": name}
        # Whoever created it, its options are those that were asked for.
        faulty.fail(Lose(), Break(), matching="create=true")
        assert (await db.topic(f"{name}-e", ttl="7d").ensure()).config["ttl"] == 7 * 86400.0
        faulty.fail(Lose(), matching="create=true")
        await (await db.queue(f"{name}-q", lease="1m")).append(1)
        faulty.fail(Lose(), matching="create=false")
        assert (await db.topic(name).configure(ttl=5)).config["ttl"] == 5.0


async def test_a_loss_that_a_sync_reports_once_is_raised(
    faulty: Faulty, connect: Any, name: str
) -> None:
    detail = {"topic": name, "gap_from": 2, "gap_to": 3, "reason": "crash"}
    error = {"code": "data_loss", "message": "records 2 to 3 are lost", "detail": detail}
    async with connect(faulty.url) as db:
        await db.topic(name).append(1)
        faulty.fail(Refuse(500, {}, json.dumps({"error": error}).encode()), matching="/v0/sync")
        with pytest.raises(te.DataLoss) as caught:
            await db.sync()
        assert caught.value.gap == te.Gap(name, 2, 3, "crash", 2)
        assert len(faulty.requests) == 1
        # An answer that was lost may have been this report; a refusal was not.
        faulty.fail(Lose(), matching="/v0/sync")
        with pytest.raises(te.Unavailable) as unknown:
            await db.sync()
        assert unknown.value.detail["outcome"] == "unknown"
        faulty.fail(Refuse(503, {}, NOT_READY), matching="/v0/sync")
        await db.sync()
        assert len(faulty.requests) == 2


@pytest.mark.parametrize("status", [429, 503])
async def test_a_refusal_is_tried_again_when_it_says(
    faulty: Faulty, connect: Any, name: str, status: int
) -> None:
    body = NOT_READY if status == 503 else Refuse(429).body
    async with connect(faulty.url) as db:
        faulty.fail(Refuse(status, {"Retry-After": "1"}, body))
        assert (await db.topic(name).append(1)).first_seq == 1
        (_, _, first), (_, _, second) = faulty.requests
        assert second - first >= 0.99


async def test_a_cap_is_told_at_once_and_overload_is_not(
    faulty: Faulty, connect: Any, name: str
) -> None:
    def refusal(limit: str) -> Refuse:
        detail = {"limit": limit, "max": 1, "retry_after_ms": 20}
        error = {"code": "throttled", "message": "m", "detail": detail}
        return Refuse(429, {"Retry-After": "1"}, json.dumps({"error": error}).encode())

    async with connect(faulty.url) as db:
        faulty.fail(refusal("max_topics"))
        with pytest.raises(te.Throttled) as caught:
            await db.topic(name).append(1)
        assert caught.value.retry_after == 0.02
        faulty.fail(refusal("staging"), refusal("max_inflight_per_key"))
        assert (await db.topic(name).append(1)).first_seq == 1
        assert len(faulty.requests) == 3
        faulty.fail(refusal("staging"))
        with pytest.raises(te.Throttled):
            await db.topic(name).append(1, block=False)


async def test_the_deadline_ends_it(
    faulty: Faulty, connect: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock and the pauses are the test's. They are long, so that an attempt is never late."""
    now, pauses = 0.0, list[float]()

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds
        pauses.append(seconds)

    monkeypatch.setattr(caller, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(caller.random, "uniform", lambda _, most: most)
    monkeypatch.setattr(caller, "FIRST_PAUSE", 20.0)
    monkeypatch.setattr(caller, "LONGEST_PAUSE", 100.0)
    async with connect(faulty.url, timeout=FOREVER, deadline=500) as db:
        monkeypatch.setattr(backend_of(db).caller.transport, "sleep", sleep)
        for fault, code in ((Refuse(503, {}, NOT_READY), "not_ready"), (Break(), "unreachable")):
            pauses.clear()
            faulty.fail(*[fault] * 200)
            with pytest.raises(te.Unavailable) as caught:
                await db.topic(name).append(1)
            assert (caught.value.code, caught.value.retryable) == (code, True)
            assert pauses == [20, 40, 80, 100, 100, 100], "pauses grow up to a limit"
            assert len(faulty.requests) == 1 + len(pauses)
            faulty.faults.clear()
        # A refusal that asks for more than there is left is not waited for.
        pauses.clear()
        faulty.fail(Refuse(503, {"Retry-After": "600"}, NOT_READY))
        with pytest.raises(te.Unavailable):
            await db.topic(name).append(1)
        assert pauses == []
        faulty.faults.clear()
    # What has no time to fail by itself would only be late, and hide why the call failed before.
    async with connect(faulty.url, timeout=FOREVER, deadline=60.04) as db:
        monkeypatch.setattr(backend_of(db).caller.transport, "sleep", sleep)
        faulty.fail(Break(), Break())
        with pytest.raises(te.Unreachable):
            await db.topic(name).append(1)
        assert pauses == [20]


async def test_nobody_there(connect: Any) -> None:
    async with connect("http://127.0.0.1:1", deadline=0.2) as db:
        with pytest.raises(te.Unavailable) as caught:
            await db.topic("t").append(1)
        assert caught.value.detail["outcome"] == "not_sent"


async def test_a_look_does_not_wait_for_a_server_that_is_not_there(
    faulty: Faulty, connect: Any, name: str
) -> None:
    async with connect(faulty.url, timeout=FOREVER, deadline=FOREVER) as db:
        handle, topic = plain(db), plain(db.topic(name))
        faulty.always = Hang(FOREVER)
        for shown in (repr(topic), topic._repr_html_(), repr(handle), handle._repr_html_()):
            assert "unreachable" in shown or "aio" in shown, shown
        faulty.always = None


async def test_an_overload_says_when_to_come_back(faulty: Faulty, connect: Any, name: str) -> None:
    async with connect(faulty.url) as db:
        faulty.fail(Refuse(429, {"Retry-After": "7"}))
        with pytest.raises(te.Throttled) as caught:
            await db.topic(name).append(1, block=False)
        assert (caught.value.retry_after, caught.value.retryable) == (7.0, True)


async def test_an_attempt_that_hangs_is_given_up(faulty: Faulty, connect: Any, name: str) -> None:
    async with connect(faulty.url, timeout=1, deadline=FOREVER) as db:
        faulty.fail(Hang(FOREVER))
        assert (await db.topic(name).append(1)).first_seq == 1
        assert len(faulty.requests) >= 2


async def test_an_ack_that_was_carried_out_is_one(faulty: Faulty, connect: Any, name: str) -> None:
    async with connect(faulty.url) as db:
        jobs = await db.queue(name, retry_backoff=0)
        await jobs.append(["a", "b", "c"])
        a, b, c = await jobs.claim("w", 3)
        faulty.fail(Lose(), matching="/ack")
        assert await a.ack()
        faulty.fail(Lose(), matching="/nack")
        assert await b.nack(0)
        assert await c.nack(0)
        (other, _) = await jobs.claim("v", 2)
        faulty.fail(Lose(), matching="/ack")
        assert not await b.ack(), "the lease is another's, and the job is there"
        assert await other.ack()


async def test_a_claim_whose_answer_was_lost_runs_out(
    faulty: Faulty, connect: Any, name: str
) -> None:
    async with connect(faulty.url) as db:
        jobs = await db.queue(name)
        await jobs.append(["a", "b"])
        faulty.fail(Lose(), matching="/claim")
        (job,) = await jobs.claim("w", lease=0.3)
        assert job.data == "b"
        # Its own lease may run out, too.
        while job.data != "a":
            (job,) = await jobs.claim("w", wait=60)
        assert job.deliveries == 2


async def test_a_read_of_a_consumer_that_was_lost_is_handed_out_again(
    faulty: Faulty, connect: Any, name: str
) -> None:
    async with connect(faulty.url) as db:
        t = db.topic(name)
        await t.append(list(range(6)))
        c = await t.consumer("c")
        assert datas(await c.read(max_records=2)) == [0, 1]
        faulty.fail(Lose())
        assert datas(await c.read(max_records=2)) == [2, 3]
        assert datas(await c.read()) == [4, 5]


async def test_a_long_read_asks_for_each_page_once(faulty: Faulty, connect: Any, name: str) -> None:
    async with connect(faulty.url) as db:
        t = db.topic(name)
        for i in range(5):
            await t.append(list(range(i * 1000, i * 1000 + 1000)))
        faulty.fail(matching="/diff")
        assert datas(await all_of(t.read())) == list(range(5000))
        assert len(faulty.requests) == 5
        # What was fetched ahead and not taken is nobody else's.
        read = t.read()
        assert [(await anext(read)).data for _ in range(1500)] == list(range(1500))
        await t.delete(before=4001)
        rest = datas(await all_of(t.read(after=2000)))
        assert rest == list(range(4000, 5000))


async def test_a_seek_that_waits_for_the_server_holds_up_no_read(faulty: Faulty, name: str) -> None:
    async with te.aio.connect(faulty.url) as db:
        t = db.topic(name)
        await t.append([1, 2])
        c = await t.consumer("c")
        faulty.fail(Hang(FOREVER), matching="/seek")
        seek = asyncio.ensure_future(c.seek(te.EARLIEST))
        await asyncio.sleep(0)
        assert datas(await c.read()) == [1, 2]
        seek.cancel()
        with pytest.raises(asyncio.CancelledError):
            await seek


def test_what_was_fetched_ahead_is_fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    from topics_engine.remote import prefetch

    class Done:
        def result(self) -> str:
            return "page"

    now = [100.0]
    monkeypatch.setattr(prefetch.time, "monotonic", lambda: now[0])
    pages: prefetch.Prefetcher[str] = prefetch.Prefetcher()
    pages.begin("a", Done)
    assert (pages.take("a"), pages.take("a")) == ("page", None)
    pages.begin("a", Done)
    now[0] += prefetch.FRESH_SECONDS + 0.1
    assert pages.take("a") is None
    for i in range(20):
        pages.begin(i, Done)
    assert [pages.take(i) for i in range(20)].count("page") == prefetch.MAX_CALLS


async def test_connections_are_kept(faulty: Faulty, connect: Any, name: str) -> None:
    async with connect(faulty.url, pool=3) as db:
        t = db.topic(name)
        for i in range(20):
            await t.append(i)
        assert faulty.connections["opened"] == 1
        await asyncio.gather(*(t.append(i) for i in range(60)))
        assert faulty.connections["opened"] <= 3
        await asyncio.gather(*(t.state() for _ in range(60)))
        assert faulty.connections["opened"] <= 6


async def test_a_silent_stream_is_replaced(faulty: Faulty, connect: Any, name: str) -> None:
    async with connect(faulty.url, heartbeat=1) as db:
        t = db.topic(name)
        await t.append(0)
        async with db.watch({name: 0}) as watch:
            assert datas(await take(watch, 1)) == [0]
            # The proxy swallows what comes next, and holds the connection.
            faulty.fail(Hang(FOREVER))
            faulty.matching = "nothing"
            await t.append(1)
            assert datas(await take(watch, 1)) == [1]
        assert faulty.connections["streams"] >= 2


async def test_a_stream_that_nobody_saw_took_nothing(
    faulty: Faulty, connect: Any, name: str
) -> None:
    async with connect(faulty.url) as db:
        await db.topic(name).append([0, 1])
        # The server hands records to a stream that the client is never told of.
        faulty.fail(Lose(), matching="/v0/watch/")
        async with db.watch({name: 0}) as watch:
            assert datas(await take(watch, 2)) == [0, 1]
        assert [method for method, _, _ in faulty.requests] == ["GET", "DELETE", "GET", "DELETE"]


async def test_a_key_is_sent_and_errors_are_typed(tmp_path: Path, connect: Any) -> None:
    keys = "boss:rwda,reader:r:a."
    live = Server(tmp_path / "data", env={"TOPICS_API_KEYS": keys})
    await asyncio.to_thread(live.start)
    try:
        async with connect(live.url, api_key="boss") as db:
            await db.topic("a.t").append(1)
            await db.queue("q")
            async with db.watch({"a.t": 0}) as watch:
                assert datas(await take(watch, 1)) == [1]
        async with connect(live.url, api_key="reader") as db:
            assert datas(await all_of(db.topic("a.t").read())) == [1]
            with pytest.raises(te.Forbidden):
                await db.topic("a.t").append(1)
            with pytest.raises(te.Forbidden):
                await db.topic("b").state()
        async with connect(live.url) as db:
            with pytest.raises(te.Unauthorized):
                await db.topic("a.t").state()
    finally:
        await asyncio.to_thread(live.ensure_dead)


async def test_a_queue_that_is_there_needs_no_administrator(tmp_path: Path, connect: Any) -> None:
    live = Server(tmp_path / "data", env={"TOPICS_API_KEYS": "boss,worker:rw"})
    await asyncio.to_thread(live.start)
    try:
        async with connect(live.url, api_key="boss") as db:
            await (await db.queue("q")).append(1)
            await db.topic("log").append(1)
        async with connect(live.url, api_key="worker") as db:
            (job,) = await (await db.queue("q")).claim("w")
            assert await job.ack()
            with pytest.raises(te.Conflict):
                await db.queue("log")
            with pytest.raises(te.Forbidden):
                await db.queue("new")
    finally:
        await asyncio.to_thread(live.ensure_dead)


async def test_an_unknown_failure_is_told(faulty: Faulty, connect: Any) -> None:
    async with connect(faulty.url, deadline=0.2) as db:
        for fault, code in (
            (Refuse(500, {}, b"<html>"), "unknown"),
            (Refuse(418, {}, json.dumps({"error": {"code": "x", "message": "m"}}).encode()), "x"),
        ):
            faulty.fail(fault)
            with pytest.raises(te.TopicsError) as caught:
                await db.topic("t").state()
            assert caught.value.code == code


@pytest.mark.parametrize("kind", [te.connect, te.aio.connect])
def test_options_are_checked(kind: Any) -> None:
    for how in (
        {"url": "ftp://x"},
        {"url": "http://"},
        {"url": "http://h/?q=1"},
        {"url": "http://h", "api_key": "ä"},
        {"url": "http://h", "deadline": 0},
        {"url": "http://h", "pool": 0},
        {"url": "http://h", "pool": 2.5},
        {"url": "http://h", "timeout": "soon"},
        {"url": "http://h", "heartbeat": timedelta(seconds=-1)},
        {"url": "http://h", "connect_timeout": None},
        {"url": 7},
        {"url": "http://h", "api_key": b"k"},
    ):
        with pytest.raises(te.InvalidRequest):
            kind(**how)


async def test_timeouts_are_durations(connect: Any) -> None:
    given = {
        "deadline": timedelta(milliseconds=200),
        "timeout": "10s",
        "connect_timeout": 5,
        "heartbeat": "0.5m",
    }
    async with connect("http://127.0.0.1:1", **given) as db:
        options = backend_of(db).options
        assert (options.deadline, options.timeout) == (0.2, 10.0)
        assert (options.connect_timeout, options.heartbeat) == (5.0, 30.0)
        with pytest.raises(te.Unreachable):
            await db.topic("t").append(1)


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (Lose(), "the connection was closed without an answer"),
        (Cut(40), "the answer was cut off"),
    ],
    ids=["lost", "cut"],
)
async def test_the_reason_why_an_answer_is_missing(
    faulty: Faulty, connect: Any, name: str, fault: Any, reason: str
) -> None:
    async with connect(faulty.url) as db:
        await db.topic(name).append(1)
        faulty.fail(fault)
        # It is not repeated, and has no timeout.
        with pytest.raises(te.Unreachable) as caught:
            await db.topic(name).sync()
    assert str(caught.value) == f"{faulty.url}: {reason}"


async def test_the_reason_why_there_is_no_connection(connect: Any, name: str) -> None:
    url = "http://127.0.0.1:1"
    async with connect(url, deadline=0.1) as db:
        # Its attempts have no timeout of their own: the last one is as long as the others.
        with pytest.raises(te.Unreachable) as caught:
            await db.topic(name).sync()
    assert str(caught.value) == f"{url}: cannot connect: Connection refused"


async def test_the_reason_why_a_wait_is_over(faulty: Faulty, connect: Any, name: str) -> None:
    faulty.fail(Hang(FOREVER))
    async with connect(faulty.url, timeout=1, deadline=1) as db:
        with pytest.raises(te.TimedOut) as caught:
            await db.topic(name).append(1)
    assert str(caught.value) == f"{faulty.url}: the server sent nothing for too long"


@pytest.mark.parametrize("body", [b"", b"<h1>Not here</h1>", b"[]", b'{"error": "gone"}'])
async def test_an_answer_of_another_server(
    faulty: Faulty, connect: Any, name: str, body: bytes
) -> None:
    faulty.fail(Refuse(404, {}, body))
    async with connect(faulty.url) as db:
        with pytest.raises(te.TopicsError, match=r"HTTP 404 .* check the URL") as caught:
            await db.topic(name).append(1)
    assert str(caught.value).endswith(f": {body.decode()!r}")


@pytest.mark.parametrize(
    ("status", "headers", "reason"),
    [
        (200, {"Content-Type": "text/html; charset=utf-8"}, "with content of type 'text/html'"),
        (200, {}, "with content of type '' instead of application/"),
        (301, {"Location": "https://h/v0"}, "redirects to 'https://h/v0', which is not followed"),
    ],
    ids=["page", "untyped", "redirection"],
)
async def test_a_success_of_another_server(
    faulty: Faulty, connect: Any, name: str, status: int, headers: dict[str, str], reason: str
) -> None:
    async with connect(faulty.url) as db:
        topic = db.topic(name)
        await topic.append(1)
        queue = await db.queue(f"{name}-q")
        calls = {
            "append": lambda: topic.append(2),
            "state": lambda: topic.state(),
            "read": lambda: all_of(topic.read()),
            "columns": lambda: topic.read().to_arrow(),
            "claim": lambda: queue.claim("w"),
        }
        for what, call in calls.items():
            faulty.fail(Refuse(status, headers, b"<h1>Welcome</h1>"))
            with pytest.raises(te.TopicsError, match=f"HTTP {status} {reason}.* check the URL"):
                await call()
            assert not faulty.faults, what


@pytest.mark.parametrize("status", [200, 302])
@pytest.mark.parametrize("headers", [{"Content-Type": "text/html"}, {}], ids=["page", "untyped"])
async def test_a_stream_of_another_server(
    faulty: Faulty, connect: Any, name: str, status: int, headers: dict[str, str]
) -> None:
    async with connect(faulty.url) as db:
        queue = await db.queue(f"{name}-q")
        await db.topic(name).append(1)
        for matching, stream in (
            ("GET /v0/watch", lambda: db.watch({name: te.LATEST})),
            ("/work", lambda: queue.work("w")),
        ):
            faulty.fail(Refuse(status, headers, b"<h1>Welcome</h1>"), matching=matching)
            with pytest.raises(te.TopicsError, match=f"HTTP {status} .* check the URL"):
                async with stream() as opened:
                    await anext(opened)
            assert not faulty.faults, matching


@pytest.mark.parametrize("status", [200, 302, 503])
async def test_a_stream_whose_refusal_stalls(
    faulty: Faulty, connect: Any, name: str, status: int
) -> None:
    async with connect(faulty.url) as db:
        await db.topic(name).append(1)
    faulty.fail(*[Refuse(status, stalls=True)] * 100, matching="GET /v0/watch")
    async with connect(faulty.url, timeout=1, deadline=1, heartbeat=0.2) as db:
        with pytest.raises(te.TimedOut, match="sent nothing for too long"):
            async with db.watch({name: te.LATEST}) as watch:
                await anext(watch)
    assert faulty.requests


def test_what_tls_trusts() -> None:
    from topics_engine.remote import Options

    assert Options("http://h").tls() is None
    strict = Options("https://h").tls()
    assert strict is not None
    assert (strict.verify_mode, strict.check_hostname) == (ssl.CERT_REQUIRED, True)
    lax = Options("https://h", verify=False).tls()
    assert lax is not None
    assert (lax.verify_mode, lax.check_hostname) == (ssl.CERT_NONE, False)
    own = ssl.create_default_context()
    assert Options("https://h", verify=own).tls() is own
    with pytest.raises(FileNotFoundError):
        Options("https://h", verify="/none/ca.pem").tls()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    folder = tmp_path_factory.mktemp("tls")
    cert, key = str(folder / "cert.pem"), str(folder / "key.pem")
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext"
    command += f" subjectAltName=DNS:localhost -out {cert} -keyout {key}"
    subprocess.run(command.split(), check=True, capture_output=True)
    return cert, key


async def test_tls(server: Server, connect: Any, name: str, certificate: tuple[str, str]) -> None:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(*certificate)
    with in_front_of(server.port, tls) as faulty:
        for verify in (certificate[0], False, ssl.create_default_context(cafile=certificate[0])):
            async with connect(faulty.url, verify=verify) as db:
                await db.topic(name).append(1)
                async with db.watch({name: 0}) as watch:
                    assert datas(await take(watch, 1)) == [1]
        for url, verify in (
            (faulty.url, True),
            (faulty.url.replace("localhost", "127.0.0.1"), certificate[0]),
        ):
            # Another attempt would meet the same: it would go on for an hour.
            async with connect(url, verify=verify, deadline=FOREVER) as db:
                with pytest.raises(te.Unavailable, match=r"(?i)certificate"):
                    await db.topic(name).append(2)
    async with connect(server.url) as db:
        assert (await db.topic(name).state()).head_seq == 3


async def test_cancelled_calls_leak_no_connection(server: Server, name: str) -> None:
    async with te.aio.connect(server.url, pool=2) as db:
        t, jobs = db.topic(name), await db.queue(f"{name}q")
        await t.append(0)
        c = await t.consumer("c", start="latest")
        for _ in range(10):
            async with db.watch(name) as watch:
                for wait in (t.wait(1), jobs.claim("w", wait=60), c.read(wait=60), anext(watch)):
                    with pytest.raises(TimeoutError):
                        await asyncio.wait_for(wait, 0.02)
        for _ in range(20):
            task = asyncio.create_task(t.append("x", idempotency_key="k"))
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await t.append("x", idempotency_key="k")
        assert datas(await all_of(t.read(after=0))) == [0, "x"]

        async def let_go() -> bool:
            return (await db.metrics())["watch_streams"] == 0

        await eventually(let_go)
        with connected_to(server):
            await until_calls_wait()
        # A claim whose client is gone takes no job.
        await jobs.append("job")
        (job,) = await jobs.claim("w", wait=60)
        assert (job.data, job.deliveries) == ("job", 1)


async def test_a_close_at_any_moment_is_told_as_one(
    server: Server, connect: Any, name: str
) -> None:
    async with connect(server.url) as db:
        await db.topic(name).append(1)
    for n in range(40):
        async with connect(server.url) as db:
            t = db.topic(name)
            waits = [asyncio.ensure_future(w) for w in (t.wait(1), t.wait(1), t.state())]
            await asyncio.sleep(n % 20 * 0.0005)  # sleep: closes come at various moments
            await db.close()
            outcomes = await asyncio.gather(*waits, return_exceptions=True)
            errors = [type(o) for o in outcomes if isinstance(o, BaseException)]
            assert set(errors) == {te.Closed}, outcomes


async def test_columns_go_on_where_they_broke_off(faulty: Faulty, connect: Any, name: str) -> None:
    pytest.importorskip("pyarrow")
    async with connect(faulty.url) as db:
        t = db.topic(name)
        for _ in range(9):
            await t.append(["x" * 1000] * 1000)
        # Several batches in, before the first, within the first, and a server that is away.
        faulty.fail(Cut(5 << 20), Cut(100), Break(), Cut(1 << 20), matching="/scan")
        table = await t.read().to_arrow()
        assert table["seq"].to_pylist() == list(range(1, 9001))
        assert len(faulty.requests) == 5


async def test_what_cannot_be_had_as_columns_is_said(
    server: Server, connect: Any, name: str
) -> None:
    """At once where the server refuses; behind what came where a stream broke off."""
    pytest.importorskip("pyarrow")
    # Whoever took it for a broken connection would try until then.
    async with connect(server.url, deadline=600.0) as db:
        for rows in (1, 9000):
            t = db.topic(f"{name}-{rows}")
            for at in range(0, rows, 1000):
                await t.append(["x" * 1000] * min(1000, rows - at))
            await t.append(b"\xff")
            with pytest.raises(te.InvalidRequest, match=f"record {rows + 1} is binary"):
                await t.read().to_arrow()
