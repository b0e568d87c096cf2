"""What the engine's view says of the object store: none, its figures, and each of its states."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import topics_engine as te
from support.http_client import Http
from support.server import Server, opened
from support.waiting import until

from .axe import AXE, violations
from .conftest import Open
from .dataset import ADMIN, KEYS, REMOTE, archive

STATES = {
    "starting": "starting",
    "ok": "shipping",
    "failing": "failing",
    "broken": "broken chain",
    "refused": "refused",
    "unsuitable": "unsuitable",
    "fenced": "fenced",
    "of-a-later-version": "of-a-later-version",
}
"""The titles of the states."""
GOOD = ("starting", "ok")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The URL of a folder."""
    return (tmp_path_factory.mktemp("remote") / "store").as_uri()


@pytest.fixture(scope="module")
def archiving(store: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that ships to the store."""
    env = {"TOPICS_REMOTE_URL": store, **REMOTE}
    with opened(tmp_path_factory.mktemp("archiving") / "data", env) as server:
        with te.connect(server.url) as db:
            archive(db)
        yield server


def figure(page: Any, title: str) -> Any:
    return page.locator(f"div:has(> dt:text-is('{title}')) > dd")


def section(page: Any) -> Any:
    return page.get_by_role("heading", name="Object store", level=2)


def check(page: Any) -> Any:
    return page.get_by_role("region", name="Health").get_by_role("row").filter(
        has_text="Object store"
    )  # fmt: skip


def metrics(server: Server, leave_out: tuple[str, ...]) -> list[str]:
    client = Http(server.port)
    lines = client("GET", "/v0/metrics").body.decode().splitlines()
    client.close()
    return [line for line in lines if not line.startswith(leave_out)]


def instead(server: Server, others: dict[str, str], json: str = "{}") -> Callable[[Any], None]:
    """Answers with the metrics of the server and these in the place of its own."""

    def answer(route: Any) -> None:
        if "application/json" in route.request.headers["accept"]:
            route.fulfill(content_type="application/json", body=json)
            return
        lines = metrics(server, tuple(name.partition("{")[0] for name in others))
        lines += [f"{name} {value}" for name, value in others.items()]
        route.fulfill(content_type="text/plain", body="\n".join(lines) + "\n")

    return answer


def test_a_server_without_one_says_how_to_have_one(visit: Open) -> None:
    page = visit("#/engine")
    section(page).wait_for()
    page.get_by_text("if the disk of this server is lost").wait_for()
    assert page.locator("code", has_text="TOPICS_REMOTE_URL").count() == 1
    assert "good" in check(page).inner_text()


def test_its_figures_are_shown(visit: Open, archiving: Server) -> None:
    page = visit("#/engine", key="", url=archiving.url)
    section(page).get_by_text("shipping", exact=True).wait_for()
    until(lambda: figure(page, "packs").inner_text() != "0")
    assert figure(page, "failed requests for cold records").inner_text() == "0"
    assert figure(page, "broken chains since the start").inner_text() == "0"
    for title in ("last base", "newest state to restore"):
        until(lambda title=title: figure(page, title).inner_text().endswith(" ago"))

    figures = {
        "topics_archive_lag_bytes": ("3145728", "bytes that wait for a pack", "3.0 MiB"),
        "topics_archive_lag_seconds": ("90", "oldest of them waits for", "1.5 min"),
        "topics_remote_lag_bytes": ("2048", "log bytes that wait to be shipped", "2.0 KiB"),
        "topics_remote_lag_seconds": ("1.5", "age of the newest state to restore", "1.5 s"),
        "topics_remote_last_success_timestamp_seconds": (
            "0", "newest state to restore", "none since the start",
        ),
        "topics_remote_last_base_timestamp_seconds": ("0", "last base", "none since the start"),
        "topics_remote_chain_broken_total": ("2", "broken chains since the start", "2"),
        "topics_pack_bytes": ("1536", "bytes of the packs", "1.5 KiB"),
    }  # fmt: skip
    had = {line.split(" ")[0] for line in metrics(archiving, ())}
    assert figures.keys() <= had
    values = {name: value for name, (value, _, _) in figures.items()}
    page.route("**/v0/metrics", instead(archiving, values))
    for _, title, wanted in figures.values():
        figure(page, title).get_by_text(wanted, exact=True).wait_for()
    page.unroute_all(behavior="wait")


@pytest.mark.parametrize("state", STATES)
def test_each_state_is_named_with_what_to_do(visit: Open, archiving: Server, state: str) -> None:
    page = visit("#/engine", key="", url=archiving.url)
    section(page).wait_for()
    reason = '{"remote_reason": "the <b>store</b> said no"}'
    values = {f'topics_remote_state{{state="{state}"}}': "1"}
    page.route("**/v0/metrics", instead(archiving, values, reason))
    section(page).get_by_text(STATES[state], exact=True).wait_for()
    told = page.locator("p.notice", has_text="the <b>store</b> said no")
    if state in GOOD:
        check(page).get_by_text("good", exact=True).wait_for()
        assert told.count() == 0
    else:
        told.wait_for()
        check(page).get_by_text("look", exact=True).wait_for()
        cells = check(page).get_by_role("cell").all_inner_texts()
        assert all(len(text) > 20 for text in cells[1:]), "what is wrong, what to do"
    page.unroute_all(behavior="wait")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_refusal_has_its_reason(
    visit: Open, tmp_path: Path, archiving: Server, store: str, scheme: str
) -> None:
    """The prefix belongs to another server. The reason names paths: only admins see it."""
    env = {"TOPICS_API_KEYS": KEYS, "TOPICS_REMOTE_URL": store, **REMOTE}
    with opened(tmp_path / "data", env) as server:
        with te.connect(server.url, ADMIN) as db:
            db.topic("t").append(1)
            until(lambda: db.metrics()["remote_state"] == "refused")
        for key, wanted in ((ADMIN, "is in use by"), ("reader-key", "The server's log says why")):
            page = visit("#/engine", key, server.url, color_scheme=scheme, bypass_csp=True)
            section(page).get_by_text("refused", exact=True).wait_for()
            page.locator("p.notice", has_text=wanted).wait_for()
            page.evaluate(AXE)
            violations(page, f"engine, {key}", scheme)
