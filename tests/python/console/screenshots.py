"""Makes the pictures of the console that the documentation shows: each view, light and dark."""

from __future__ import annotations

import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import topics_engine as te
from support.browser import browsers
from support.server import Server, opened

from .dataset import REMOTE, VIEWS, archive, fill

WARM_UP_MS = 12_000


def write(url: str, ended: threading.Event) -> None:
    """Traffic, so that there are rates and latencies to see."""
    with te.connect(url) as db:
        n = 0
        while not ended.wait(0.05):
            n += 1
            db.topic("clicks").append([{"page": f"/product/{n % 90}"}] * (10 + n % 7))
            if n % 3 == 0:
                order = {"id": 400 + n, "customer": f"c{n % 97}", "total": n * 1.25, "paid": True}
                db.topic("orders").append([order], tag=f"eu:{n % 9}", origin="shop-1")


@contextmanager
def served() -> Iterator[Server]:
    """A server with data, and with a writer."""
    with (
        tempfile.TemporaryDirectory() as directory,
        opened(
            Path(directory) / "data",
            {"TOPICS_REMOTE_URL": (Path(directory) / "store").as_uri(), **REMOTE},
        ) as server,
    ):
        fill(server.url, None)
        with te.connect(server.url) as db:
            archive(db)
            list(db.topic("history").read())
        ended = threading.Event()
        writer = threading.Thread(target=write, args=(server.url, ended))
        writer.start()
        try:
            yield server
        finally:
            ended.set()
            writer.join()


def take(browser: Any, server: Server, scheme: str, into: Path) -> None:
    context = browser.new_context(color_scheme=scheme, viewport={"width": 1280, "height": 800})
    page = context.new_page()
    for name, view in VIEWS.items():
        page.goto(f"{server.url}/console{view}")
        page.locator("main .counters").first.wait_for()
        page.wait_for_timeout(WARM_UP_MS if name in ("topics", "engine") else 2500)
        page.screenshot(path=into / f"{name}-{scheme}.png")
    page.goto(f"{server.url}/console#/topics/orders")
    page.get_by_role("button", name="Edit config").click()
    page.get_by_label("cap_records").fill("1000000")
    page.get_by_label("ttl_ms").fill("7d")
    page.screenshot(path=into / f"edit-{scheme}.png")
    page.goto(f"{server.url}/console#/topics/sensors")
    page.get_by_role("tab", name="Browse").click()
    page.get_by_label("From seq").fill("1")
    page.get_by_role("button", name="Go").click()
    page.get_by_text("Gap:").wait_for()
    page.screenshot(path=into / f"browse-{scheme}.png")
    page.goto(f"{server.url}/console#/queues/mails")
    page.get_by_role("button", name="Job 1", exact=True).click()
    page.get_by_role("dialog").wait_for()
    page.screenshot(path=into / f"job-{scheme}.png")
    context.close()


def main(into: Path) -> None:
    into.mkdir(parents=True, exist_ok=True)
    with contextmanager(browsers)() as browser, served() as server:
        for scheme in ("light", "dark"):
            take(browser, server, scheme, into)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
