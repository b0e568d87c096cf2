"""Names of others: a key with prefixes learns of them by no list, cursor, state or refusal."""

from __future__ import annotations

import base64
import contextlib
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.h2_client import Http2Port
from support.server import Server, opened

from .test_keys import ROW, Client

KEYS = {"TOPICS_API_KEYS": "root,mine::mine.|my-"}
# Topics, consumers, routers and writers, of others before, between and behind the key's own.
THEIRS = ("a-secret", "mine-secret", "n-secret", "z-secret")
OURS = ("mine.a", "mine.b", "my-q")


@pytest.fixture(scope="module")
def ports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, int]]:
    with contextlib.ExitStack() as stack:
        made: dict[str, int] = {}
        for protocol, hot in (("plain", "0"), ("hot", "1")):
            directory: Path = tmp_path_factory.mktemp(f"prefixes-{protocol}") / "data"
            env = KEYS | {"TOPICS_HOT_PROTOCOL": hot}
            server = stack.enter_context(opened(directory, env))
            fill(server)
            made[protocol] = server.port
        yield made | {"h2": Http2Port(made["hot"])}


@pytest.fixture
def clients(ports: dict[str, int], protocol: str) -> Iterator[tuple[Client, Client]]:
    """Of everybody's key, and of one with prefixes."""
    root, mine = Client(ports[protocol], "root"), Client(ports[protocol], "mine")
    yield root, mine
    root.close()
    mine.close()


def fill(server: Server) -> None:
    root = Client(server.port, "root")
    for name in (*THEIRS, *OURS):
        assert root("POST", f"/v0/topics/{name}", ROW).status == 201
        for consumer in ("c1", "c2"):
            assert root("PUT", f"/v0/topics/{name}/consumers/{consumer}").status == 201
        work = {"appends": [{"topic": name, **ROW}]}
        assert root("POST", "/v0/txn", work | {"writer": f"w-{name}", "epoch": 1}).status == 200
        assert root("POST", f"/v0/txn/w-{name}/stage/s?part=0", work).status == 200
    for name, source, dest in ROUTERS:
        router = {"source": source, "dest": dest, "create_dest": True}
        assert root("PUT", f"/v0/routers/{name}", router).status == 201
    root.close()


ROUTERS = (
    ("mine.own", "mine.a", "mine.copy"),
    ("mine.in", "a-secret", "mine.landing"),
    ("mine.out", "mine.b", "z-secret"),
    ("other", "a-secret", "n-secret"),
)
LISTS = ("/v0/topics", "/v0/consumers", "/v0/routers", "/v0/txn", "/v0/topics/mine.a/consumers")


def cursor(last: str) -> str:
    return base64.urlsafe_b64encode(last.encode()).decode().rstrip("=")


def nothing_of_others(answer: bytes) -> None:
    assert b"secret" not in answer, answer


@pytest.mark.parametrize("path", LISTS)
def test_a_crafted_cursor_leads_to_no_name_of_others(
    clients: tuple[Client, Client], path: str
) -> None:
    _, mine = clients
    pages = [mine("GET", path).body]
    names = ("", "a", "mine", "mine-", "mine.", "mine.a", "my-q", "zz", *THEIRS, *OURS)
    for name, more in itertools.product(names, ("", "\n", "\nc", "\nc1", "\n\n")):
        for query in ("", "&page_size=1", "&prefix=m", "&prefix=c"):
            reply = mine("GET", f"{path}?cursor={cursor(name + more)}{query}")
            # It is refused, or read from there among the key's own.
            assert reply.status == 200 or reply.code in ("forbidden", "invalid_request"), reply
            if reply.status == 200:
                pages.append(reply.body)
            for page in pages:
                nothing_of_others(page)
            pages.clear()
    for theirs in THEIRS:
        refused = mine("GET", f"/v0/consumers?cursor={cursor(theirs + chr(10))}")
        assert (refused.status, refused.code) == (403, "forbidden"), "there or not is no matter"


def test_cursors_of_lists_lead_through_what_is_the_keys_own(
    clients: tuple[Client, Client],
) -> None:
    _, mine = clients
    wanted = {
        "/v0/topics": ["mine.a", "mine.b", "mine.copy", "mine.landing", "my-q"],
        "/v0/consumers": [f"{t}/{c}" for t in OURS for c in ("c1", "c2")],
        "/v0/routers": ["mine.own"],
    }
    for path, expected in wanted.items():
        found, at = [], ""
        while True:
            page = mine("GET", f"{path}?page_size=1{at}").json
            (entries,) = (value for value in page.values() if isinstance(value, list))
            for entry in entries:
                found.append(
                    f"{entry['topic']}/{entry['consumer']}"
                    if "consumer" in entry
                    else entry.get("router") or entry["topic"]
                )
            if "next_cursor" not in page:
                break
            at = f"&cursor={page['next_cursor']}"
        assert found == expected, path


def test_states_and_metrics_show_nothing_of_others(clients: tuple[Client, Client]) -> None:
    root, mine = clients
    for accept in ("text/plain", "application/json"):
        nothing_of_others(mine("GET", "/v0/metrics", headers={"Accept": accept}).body)
        assert b"a-secret" in root("GET", "/v0/metrics", headers={"Accept": accept}).body
    for patterns in (["*"], ["m*"], ["mine*", "a*"]):
        nothing_of_others(mine("POST", "/v0/state", {"patterns": patterns}).body)
    assert mine("POST", "/v0/state", {"topics": ["a-secret"]}).code == "forbidden"
    assert mine("POST", "/v0/sync", {"topic": "a-secret"}).code == "forbidden"
    # A writer that is another key's, and one that nobody has used since the start.
    for theirs in THEIRS:
        assert mine("GET", f"/v0/txn/w-{theirs}").code == "txn_not_found"
    assert mine("GET", "/v0/txn").json["writers"] == []
    assert len(root("GET", "/v0/txn").json["writers"]) == len(THEIRS) + len(OURS)


def test_routers_of_other_names_are_out_of_reach(clients: tuple[Client, Client]) -> None:
    root, mine = clients
    assert [r["router"] for r in mine("GET", "/v0/routers").json["routers"]] == ["mine.own"]
    assert mine("GET", "/v0/routers?source=a-secret").json["routers"] == []
    assert len(root("GET", "/v0/routers").json["routers"]) == len(ROUTERS)
    for name in ("mine.in", "mine.out"):
        own: dict[str, Any] = {"source": "mine.a", "dest": "mine.copy"}
        for method, body in (("GET", None), ("DELETE", None), ("PUT", own)):
            reply = mine(method, f"/v0/routers/{name}", body)
            assert (reply.status, reply.code) == (403, "forbidden"), (method, reply)
            nothing_of_others(reply.body)
    assert mine("GET", "/v0/routers/mine.own").json["source"] == "mine.a"
    # What stands in the way is said, but not what it is.
    fan_in = mine("PUT", "/v0/routers/mine.x", {"source": "mine.a", "dest": "mine.landing"})
    assert (fan_in.status, fan_in.code) == (409, "topic_exists_incompatible")
    nothing_of_others(fan_in.body)
    circle = {"source": "z-secret", "dest": "mine.a"}
    assert root("PUT", "/v0/routers/other.back", circle).status == 201
    cycle = mine("PUT", "/v0/routers/mine.x", {"source": "mine.copy", "dest": "mine.b"})
    assert (cycle.status, cycle.code) == (409, "router_cycle"), cycle
    nothing_of_others(cycle.body)
    assert b"a-secret" in root("GET", "/v0/routers/mine.in").body
    assert root("DELETE", "/v0/routers/other.back").json["deleted"] is True


def test_a_deleted_topic_names_no_router_of_others(clients: tuple[Client, Client]) -> None:
    root, mine = clients
    assert mine("PUT", "/v0/topics/mine.gone").status == 201
    for n, name in enumerate(("mine.gone-1", "secret-router")):
        router = {"source": "mine.gone", "dest": f"mine.gone-{n}"}
        assert root("PUT", f"/v0/routers/{name}", router).status == 201
    assert mine("DELETE", "/v0/topics/mine.gone").json["routers_removed"] == ["mine.gone-1"]
    for n in range(2):
        assert mine("DELETE", f"/v0/topics/mine.gone-{n}").status == 200


def test_writers_of_before_a_restart_stay_their_keys(tmp_path: Path) -> None:
    for hot in "01":
        env = KEYS | {"TOPICS_HOT_PROTOCOL": hot}
        with opened(tmp_path / hot, env) as server:
            fill(server)
        with opened(tmp_path / hot, env) as server:
            for port in (server.port, Http2Port(server.port)):
                root, mine = Client(port, "root"), Client(port, "mine")
                assert mine("GET", "/v0/txn").json["writers"] == []
                nothing_of_others(mine("GET", f"/v0/txn?cursor={cursor('a')}").body)
                # A writer stays its key's.
                for name in ("a-secret", "mine.a"):
                    assert mine("GET", f"/v0/txn/w-{name}").code == "txn_not_found"
                assert len(root("GET", "/v0/txn").json["writers"]) == len(THEIRS) + len(OURS)
                root.close()
                mine.close()
