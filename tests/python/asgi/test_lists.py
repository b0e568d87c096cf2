"""Lists in pages: 100 entries unless asked, at most 1000, a cursor while there is more."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.h2_client import Http2Port
from support.http_client import Http
from support.server import Server, running

COUNT = 1001
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
    for name in names:
        work = {"appends": rows[:1], "writer": name, "epoch": 1}
        assert api("POST", "/v0/txn", work).status == 200
        assert api("PUT", f"/v0/topics/p0000/consumers/{name}").status == 201
        # The first one leads out of the circle.
        router = {"source": "p0000", "dest": "last" if name == "p0000" else name}
        assert api("PUT", f"/v0/routers/{name}", router).status == 201
    api.close()
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
