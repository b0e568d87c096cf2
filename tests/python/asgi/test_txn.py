"""Transactions over HTTP: stages, commits, whose writers they are, and what a restart keeps."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.http_client import Http, Reply
from support.server import Server, running

from .test_keys import Client


def rows(topic: str, *values: Any) -> dict[str, Any]:
    return {"appends": [{"topic": topic, "records": [{"data": v} for v in values]}]}


def stage(api: Any, writer: str, name: str, part: int, body: dict[str, Any]) -> Any:
    return api("POST", f"/v0/txn/{writer}/stage/{name}?part={part}", body)


def commit(api: Any, writer: str, epoch: int, *stages: tuple[str, int, int], **work: Any) -> Any:
    listed = [{"id": s, "parts": parts, "records": n} for s, parts, n in stages]
    return api("POST", f"/v0/txn/{writer}/commit", {"epoch": epoch, "stages": listed, **work})


def read(api: Any, topic: str) -> list[Any]:
    reply = api("POST", f"/v0/topics/{topic}/diff", {"limit": 1000})
    return [] if reply.code == "topic_not_found" else [r["data"] for r in reply.json["records"]]


def without_cost(reply: Reply) -> Any:
    assert reply.status == 200, reply
    return {k: v for k, v in reply.json.items() if k != "performance"}


def test_stages_are_published_once(api: Http, topic: str) -> None:
    a, b = f"{topic}-a", f"{topic}-b"
    first = stage(api, topic, "s%2F1%2F", 0, rows(a, 1, 2)).json
    assert (first["staged"], first["deduped"]) == (2, False)
    again = stage(api, topic, "s%2F1%2F", 0, rows(a, "other")).json
    assert (again["staged"], again["deduped"]) == (2, True)
    assert stage(api, topic, "s%2F1%2F", 1, rows(b, 3)).json["staged"] == 1
    assert stage(api, topic, "s2", 0, rows(a, 4)).json["staged"] == 1
    assert read(api, a) == [], "what is staged is invisible"
    known = api("GET", f"/v0/txn/{topic}").json
    assert (known["writer"], known["last_epoch"]) == (topic, None)
    assert [(s["id"], s["parts"], s["records"]) for s in known["staged"]] == [
        ("s/1/", 2, 3), ("s2", 1, 1),
    ]  # fmt: skip
    stages = [("s2", 1, 1), ("s/1/", 2, 3)]
    done = without_cost(commit(api, topic, 7, *stages))
    assert (done["committed"], done["deduped"], set(done["topics"])) == (True, False, {a, b})
    assert (done["topics"][a]["first_seq"], done["topics"][a]["last_seq"]) == (1, 3)
    assert (read(api, a), read(api, b)) == ([4, 1, 2], [3])
    assert without_cost(commit(api, topic, 7, *stages)) == done | {"deduped": True}
    assert (read(api, a), read(api, b)) == ([4, 1, 2], [3])
    stale = commit(api, topic, 6, *stages)
    assert (stale.status, stale.code) == (409, "stale_epoch")
    assert stale.json["error"]["detail"] == {"writer": topic, "epoch": 6, "last_epoch": 7}
    known = api("GET", f"/v0/txn/{topic}").json
    assert (known["last_epoch"], known["staged"]) == (7, [])


def test_what_is_not_all_there_is_not_published(api: Http, topic: str) -> None:
    stage(api, topic, "s", 0, rows(topic, 1))
    for listed in (("s", 2, 1), ("s", 1, 5), ("unknown", 1, 1)):
        refused = commit(api, topic, 1, listed)
        assert (refused.status, refused.code) == (409, "txn_incomplete"), refused
    assert commit(api, topic, 1, ("s", 1, 1), expect_heads={topic: 5}).code == "head_mismatch"
    assert read(api, topic) == []
    gone = api("DELETE", f"/v0/txn/{topic}/stage/s").json
    assert (gone["writer"], gone["id"], gone["aborted"]) == (topic, "s", True)
    assert api("DELETE", f"/v0/txn/{topic}/stage/s").json["aborted"] is False
    assert api("GET", f"/v0/txn/{topic}").code == "txn_not_found"
    assert commit(api, topic, 1, ("s", 1, 1)).code == "txn_incomplete"
    published = stage(api, topic, "t", 0, rows(topic, "kept")), commit(api, topic, 2, ("t", 1, 1))
    assert [r.status for r in published] == [200, 200]
    # Nothing undoes what is published.
    assert api("DELETE", f"/v0/txn/{topic}/stage/t").json["aborted"] is False
    assert read(api, topic) == ["kept"]


def test_a_stage_takes_arrow(api: Http, topic: str) -> None:
    pytest.importorskip("pyarrow")
    from .test_scan import ARROW, ipc

    a, b = f"{topic}-a", f"{topic}-b"
    path = f"/v0/txn/{topic}/stage/s"
    mixed = ipc({"topic": [a, b, a], "data": ["1", "2", "3"], "tag": ["x", None, "y"]})
    arrow = {"Content-Type": ARROW}
    assert api("POST", f"{path}?part=0", mixed, arrow).json["staged"] == 3
    one = ipc({"data": ["4"] * 5000})
    assert api("POST", f"{path}?part=1&topic={b}", one, arrow).json["staged"] == 5000
    assert api("POST", f"{path}?part=2", one, arrow).code == "invalid_request"
    done = commit(api, topic, 1, ("s", 2, 5003)).json["topics"]
    assert {t: v["last_seq"] for t, v in done.items()} == {a: 2, b: 5001}
    assert read(api, a) == [1, 3]


def test_a_transaction_in_one_request(api: Http, topic: str) -> None:
    source, queue, out = f"{topic}-in", f"{topic}-q", f"{topic}-out"
    api("PUT", f"/v0/topics/{queue}", {"type": "queue"})
    api("POST", f"/v0/topics/{queue}", {"records": [{"data": "job"}]})
    api("POST", f"/v0/topics/{source}", {"records": [{"data": n} for n in range(3)]})
    api("PUT", f"/v0/topics/{source}/consumers/c")
    job = api("POST", f"/v0/topics/{queue}/claim", {"node": "w"}).json["claimed"][0]
    ack = {"queue": queue, "node": "w", "seqs": [job["$seq"]], "lease_ids": [job["lease_id"]]}
    body = rows(out, "done") | {
        "commits": [{"topic": source, "consumer": "c", "seq": 3}],
        "acks": [ack],
        "idempotency_key": topic,
    }
    done = without_cost(api("POST", "/v0/txn", body))
    assert (done["deduped"], done["topics"][out]["last_seq"]) == (False, 1)
    assert without_cost(api("POST", "/v0/txn", body)) == done | {"deduped": True}
    assert api("POST", "/v0/txn", rows(out, 1) | {"idempotency_key": topic}).code == (
        "idempotency_mismatch"
    )
    assert read(api, out) == ["done"]
    assert api("GET", f"/v0/topics/{source}/consumers/c").json["cursor"] == 3
    assert api("GET", f"/v0/topics/{queue}").json["count"] == 0
    lost = api("POST", "/v0/txn", rows(out, 2) | {"acks": [ack]})
    assert (lost.status, lost.code) == (409, "lease_lost")
    heads = rows(out, 3) | {"expect_heads": {out: 9}}
    assert api("POST", "/v0/txn", heads).code == "head_mismatch"
    header = {"Idempotency-Key": f"{topic}-h"}
    firsts = [api("POST", "/v0/txn", rows(out, 4), header).json["topics"][out] for _ in "ab"]
    assert firsts[0] == firsts[1]
    assert read(api, out) == ["done", 4]


def test_writers_are_listed(api: Http, topic: str) -> None:
    names = [f"{topic}.{n}" for n in range(5)]
    for name in names[:3]:
        assert api("POST", "/v0/txn", rows(topic, 1) | {"writer": name, "epoch": 3}).status == 200
    for name in names[2:]:
        assert stage(api, name, "s", 0, rows(topic, 1, 2)).status == 200
    seen: list[Any] = []
    page = api("GET", f"/v0/txn?prefix={topic}.&page_size=2").json
    while True:
        seen += [(w["writer"], w["last_epoch"], w["records"]) for w in page["writers"]]
        if "next_cursor" not in page:
            break
        page = api("GET", f"/v0/txn?prefix={topic}.&page_size=2&cursor={page['next_cursor']}").json
    epochs = [3, 3, 3, None, None]
    assert seen == list(zip(names, epochs, [0, 0, 2, 2, 2], strict=True))


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/stage/s", {"appends": []}),
        ("POST", "/stage/s?part=0", {"appends": []}),
        ("POST", "/stage/s?part=x", rows("a", 1)),
        ("POST", "/stage/s?part=4294967296", {"appends": []}),
        ("POST", f"/stage/{'x' * 129}?part=0", rows("a", 1)),
        ("POST", "/commit", {"stages": []}),
        ("POST", "/commit", {"epoch": 1, "stages": [{"id": "s"}]}),
        ("POST", "/commit", {"epoch": -1}),
    ],
)  # fmt: skip
def test_refusals(api: Http, topic: str, method: str, path: str, body: Any) -> None:
    assert api(method, f"/v0/txn/{topic}{path}", body).code == "invalid_request"


def test_names_of_writers(api: Http) -> None:
    for name in ("%24k.1", "a%2Fb", "-a", "a b"):
        refused = stage(api, name.replace(" ", "%20"), "s", 0, rows("a", 1))
        assert refused.code == "invalid_request", name
    assert api("GET", "/v0/txn/never").code == "txn_not_found"


A, B, ROOT = "a-key", "b-key", "root-key"


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Server]:
    keys = f"{ROOT},{A}:rw:a.|in,{B}:rw:b.|in"
    yield from running(tmp_path / "data", {"TOPICS_API_KEYS": keys})


@pytest.fixture
def connect(guarded: Server) -> Iterator[Callable[[str], Client]]:
    with contextlib.ExitStack() as opened:

        def one(key: str) -> Client:
            client = Client(guarded.port, key)
            opened.callback(client.close)
            return client

        yield one


def test_a_writer_is_its_first_keys(connect: Callable[[str], Client]) -> None:
    a, b, root = map(connect, (A, B, ROOT))
    assert stage(a, "w", "s", 0, rows("a.x", 1)).status == 200
    for refused in (
        stage(b, "w", "t", 0, rows("b.x", 1)),
        commit(b, "w", 1),
        b("DELETE", "/v0/txn/w/stage/s"),
        b("POST", "/v0/txn", rows("b.x", 1) | {"writer": "w"}),
        stage(root, "w", "t", 0, rows("a.x", 1)),
    ):
        assert (refused.status, refused.code) == (403, "forbidden")
    assert b("GET", "/v0/txn/w").code == "txn_not_found"
    assert b("GET", "/v0/txn").json["writers"] == []
    # A name that came to nothing is nobody's.
    assert commit(b, "free", 1, ("s", 1, 1)).code == "txn_incomplete"
    assert stage(a, "free", "s", 0, rows("a.x", 1)).status == 200
    assert [w["writer"] for w in a("GET", "/v0/txn").json["writers"]] == ["free", "w"]
    assert commit(a, "w", 1, ("s", 1, 1)).status == 200


def test_writers_and_keys_are_of_an_api_key(tmp_path: Path) -> None:
    limits = {"TOPICS_MAX_TXN_WRITERS_PER_KEY": "1", "TOPICS_API_KEYS": "one,two,few:read+write"}
    server = Server(tmp_path / "data", env=limits)
    server.start()
    opened = contextlib.ExitStack()

    def connect(*keys: str) -> list[Client]:
        opened.close()
        clients = [Client(server.port, key) for key in keys]
        for client in clients:
            opened.callback(client.close)
        return clients

    try:
        first, second = connect("one", "two")
        body = {"appends": [{"topic": "t", "records": [{"data": 1}]}]}

        def ask(client: Client, **fields: Any) -> Any:
            return client("POST", "/v0/txn", body | fields)

        assert ask(first, writer="w", epoch=5).status == 200
        for stop in (server.stop, server.kill):
            refused = ask(first, writer="v", epoch=1)
            detail = refused.json["error"]["detail"]
            assert (refused.status, detail["limit"]) == (429, "max_txn_writers_per_key")
            assert ask(second, writer="w", epoch=6).code == "forbidden", (
                "a restart keeps whose it is"
            )
            assert second("GET", "/v0/txn/w").code == "txn_not_found"
            assert ask(first, writer="w", epoch=5).json["deduped"] is True
            stop()
            server.start()
            first, second = connect("one", "two")
        assert ask(second, writer="x", epoch=1).status == 200, "each key has its own"
        # The same idempotency key of another API key is another one.
        for client in (first, second):
            assert ask(client, idempotency_key="k").json["deduped"] is False
            assert ask(client, idempotency_key="k").json["deduped"] is True
        first, second, few = connect("one", "two", "few")
        assert few("DELETE", "/v0/txn/w").code == "forbidden", "it needs the scope delete"
        assert first("DELETE", "/v0/txn/w").json["forgotten"] is True
        assert ask(second, writer="w", epoch=1).code == "throttled"
        assert ask(first, writer="w", epoch=1).json["deduped"] is False
        assert server.stop() == 0
    finally:
        opened.close()
        server.ensure_dead()


def label(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()[:16]


def test_an_administrator_hands_a_writer_over(guarded: Server) -> None:
    with contextlib.ExitStack() as opened:

        def connect(*keys: str) -> list[Client]:
            clients = [Client(guarded.port, key) for key in keys]
            for client in clients:
                opened.callback(client.close)
            return clients

        def transact(client: Client, epoch: int) -> Reply:
            reply: Reply = client(
                "POST", "/v0/txn", rows("in.x", 1) | {"writer": "w", "epoch": epoch}
            )
            return reply

        a, b, root = connect(A, B, ROOT)
        assert transact(a, 5).status == 200
        assert stage(a, "staged", "s", 0, rows("a.x", 1)).status == 200
        for writer in ("w", "staged"):
            to = f"/v0/txn/{writer}/owner"
            assert a("PUT", to, {"owner": label(B)}).code == "forbidden", "it needs the scope admin"
            handed = root("PUT", to, {"owner": label(B)})
            assert without_cost(handed) == {"writer": writer, "owner": label(B)}
        assert root("PUT", "/v0/txn/none/owner", {"owner": label(B)}).code == "txn_not_found"
        assert transact(a, 6).code == "forbidden"
        assert a("DELETE", "/v0/txn/staged/stage/s").code == "forbidden"
        assert b("GET", "/v0/txn/staged").json["staged"] == [], "it does not cover the rows"
        assert b("GET", "/v0/txn/w").json["last_epoch"] == 5
        assert guarded.stop() == 0
        guarded.start()
        a, b = connect(A, B)
        assert transact(a, 6).code == "forbidden", "a restart keeps the new owner"
        assert transact(b, 5).json["deduped"] is True
        assert transact(b, 6).json["deduped"] is False


def test_after_a_refused_last_epoch_the_writer_goes_on(api: Http, topic: str) -> None:
    def transact(**fields: Any) -> Reply:
        return api("POST", "/v0/txn", rows(topic, 1) | {"writer": topic, **fields})

    for refused in (transact(epoch=2**64 - 1), commit(api, topic, 2**64 - 1)):
        assert (refused.status, refused.code) == (400, "invalid_request")
        assert "forget the writer" in refused.json["error"]["message"]
    assert transact().status == 200
    assert api("GET", f"/v0/txn/{topic}").json["last_epoch"] == 1
    assert transact(epoch=2**64 - 2).status == 200
    assert transact().code == "invalid_request", "there is no next epoch"
    assert transact(epoch=2**64 - 2).json["deduped"] is True
    assert api("DELETE", f"/v0/txn/{topic}").json["forgotten"] is True
    assert transact().status == 200


def test_prefixes_bind_every_topic_of_a_transaction(
    guarded: Server, connect: Callable[[str], Client]
) -> None:
    a, root = map(connect, (A, ROOT))
    root("PUT", "/v0/topics/b.q", {"type": "queue"})
    for refused in (
        stage(a, "w", "s", 0, rows("b.x", 1)),
        a("POST", "/v0/txn", rows("b.x", 1)),
        a("POST", "/v0/txn", rows("a.x", 1) | {"expect_heads": {"b.x": 0}}),
        commit(a, "w", 1, commits=[{"topic": "b.x", "consumer": "c", "seq": 1}]),
        commit(a, "w", 1, acks=[{"queue": "b.q", "node": "n", "seqs": [1]}]),
    ):
        assert (refused.status, refused.code) == (403, "forbidden"), refused
    # After a restart nobody knows whose a writer was; what it staged says whose it cannot be.
    assert stage(root, "w2", "s", 0, rows("b.x", 1)).status == 200
    assert guarded.stop() == 0
    guarded.start()
    a, b = map(connect, (A, B))
    assert commit(a, "w2", 1, ("s", 1, 1)).code == "forbidden"
    assert a("DELETE", "/v0/txn/w2/stage/s").code == "forbidden"
    assert commit(b, "w2", 1, ("s", 1, 1)).status == 200
    assert commit(a, "w2", 1, ("s", 1, 1)).code == "forbidden"


def test_a_restart_keeps_stages_and_epochs(own_server: Server) -> None:
    own_server.start()
    api = Http(own_server.port)
    assert stage(api, "w", "s", 0, rows("t", 1)).status == 200
    assert api("POST", "/v0/txn", rows("t", 0) | {"writer": "v", "epoch": 4}).status == 200
    api.close()
    own_server.kill()
    own_server.start()
    api = Http(own_server.port)
    done = commit(api, "w", 1, ("s", 1, 1))
    assert done.json["topics"]["t"]["first_seq"] == 2
    again = api("POST", "/v0/txn", rows("t", 0) | {"writer": "v", "epoch": 4}).json
    assert (again["deduped"], again["topics"]["t"]["first_seq"]) == (True, 1)
    assert read(api, "t") == [0, 1]
    api.close()
    assert own_server.stop() == 0
