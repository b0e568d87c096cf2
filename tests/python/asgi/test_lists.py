"""Lists in pages: 100 entries unless asked, at most 1000, a cursor while there is more."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from support.h2_client import Http2Connection, Http2Port
from support.http_client import Http
from support.server import Server, running

from .pending import DEADLINE

COUNT = 1001
# Requests of one connection of HTTP/2 at a time.
TOGETHER = 50
# Where a list is, what it is called, and the name of an entry.
LISTS = {
    "/v0/topics": ("topics", "topic"),
    "/v0/routers": ("routers", "router"),
    "/v0/txn": ("writers", "writer"),
    "/v0/consumers": ("consumers", "consumer"),
    "/v0/topics/p0000/consumers": ("consumers", "consumer"),
}


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    yield from running(tmp_path_factory.mktemp("lists") / "data")


@pytest.fixture(scope="module")
def full(empty: Server) -> Server:
    """A server with one entry more than a page may have, in each list."""
    api = Http(empty.port)
    names = [f"p{n:04}" for n in range(COUNT)]
    rows = [{"topic": name, "records": [{"data": 1}]} for name in names]
    assert api("POST", "/v0/txn", {"appends": rows}).status == 200
    api.close()
    asked: list[tuple[str, str, dict[str, Any]]] = []
    for name in names:
        work = {"appends": rows[:1], "writer": name, "epoch": 1}
        # The first one leads out of the circle.
        router = {"source": "p0000", "dest": "last" if name == "p0000" else name}
        asked += [
            ("POST", "/v0/txn", work),
            ("PUT", f"/v0/topics/p0000/consumers/{name}", {}),
            ("PUT", f"/v0/routers/{name}", router),
        ]
    link = Http2Connection("127.0.0.1", empty.port, DEADLINE)
    kind = {"Content-Type": "application/json"}
    # Many at a time share the syncs of the disk.
    for at in range(0, len(asked), TOGETHER):
        for response in [
            link.start(method, path, json.dumps(body).encode(), kind)
            for method, path, body in asked[at : at + TOGETHER]
        ]:
            response.wait(lambda response=response: response.status)
            assert response.status in (200, 201), response.read()
            response.read()
    link.close()
    return empty


@pytest.mark.parametrize("http", [1, 2])
@pytest.mark.parametrize("path", LISTS)
def test_pages(full: Server, path: str, http: int) -> None:
    api = Http(full.port if http == 1 else Http2Port(full.port))
    name, of = LISTS[path]
    expected = [f"p{n:04}" for n in range(COUNT)]

    def page(query: str) -> tuple[list[str], str | None]:
        answer = api("GET", f"{path}?{query}").json
        return [entry[of] for entry in answer[name]], answer.get("next_cursor")

    for query, size in (("", 100), ("page_size=0", 100), ("page_size=1", 1), ("page_size=999", 999),
                        ("page_size=1000", 1000), ("page_size=1001", 1000),
                        (f"page_size={2**64 - 1}", 1000)):  # fmt: skip
        seen, cursor = page(f"prefix=p&{query}")
        assert (seen, bool(cursor)) == (expected[:size], True), query
    seen, cursor = page("prefix=p&page_size=1000")
    rest, last = page(f"prefix=p&page_size=1000&cursor={cursor}")
    assert (seen + rest, last) == (expected, None)
    # What is left is a whole page: there is none behind it.
    assert page("prefix=p000") == (expected[:10], None)
    assert page("prefix=p000&page_size=10") == (expected[:10], None)
    assert page("prefix=none") == ([], None)
    assert page(f"prefix=p0000&cursor={cursor}") == ([], None)
    api.close()
