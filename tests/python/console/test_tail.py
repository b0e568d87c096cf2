"""A tail of 5 000 records a second, and how long the page takes for its frames meanwhile."""

from __future__ import annotations

import json
import threading
import time
from typing import Any

import pytest

import topics_engine as te
from support.gate import GATE
from support.server import Server

from .conftest import Open
from .dataset import ADMIN

RATE = 5000
BATCH = 250
SECONDS = 4.0
FRAME_MS = 50

SHOWN = 100
REPAINT_MS = 250

# How long a task takes depends on the machine: it is printed, and limited at the release gate. A
# frame has two tasks, a timer's and a paint's. What does not depend on it is limited at every gate:
# how often the table is painted, and how many rows it has.
MEASURE = """
window.frames_ = [];
window.begun_ = performance.now();
window.paints_ = [];
const changes = {subtree: true, childList: true, characterData: true};
new MutationObserver(() => paints_.push(performance.now()))
    .observe(document.querySelector(".records tbody"), changes);
let last = performance.now();
const frame = now => { frames_.push(now - last); last = now; requestAnimationFrame(frame); };
requestAnimationFrame(frame);
"""


def task_times(trace: bytes) -> list[float]:
    """Milliseconds of processor time of each task of the page's main thread, sorted."""
    events = json.loads(trace)["traceEvents"]
    main = {
        (e["pid"], e["tid"])
        for e in events
        if e.get("name") == "thread_name" and e["args"]["name"] == "CrRendererMain"
    }
    return sorted(
        e["tdur"] / 1000
        for e in events
        if "RunTask" in e["name"] and "tdur" in e and (e["pid"], e["tid"]) in main
    )


def write(url: str, ended: threading.Event, written: list[int]) -> None:
    row = {"customer": "c17", "total": 12.5, "items": [{"sku": "A-1", "count": 2}], "paid": True}
    with te.connect(url, ADMIN) as db:
        topic = db.topic("firehose")
        start = time.monotonic()
        while not ended.is_set():
            topic.append([row | {"id": written[0] + n} for n in range(BATCH)], tag="eu:7")
            written[0] += BATCH
            ended.wait(max(0.0, start + written[0] / RATE - time.monotonic()))


@pytest.mark.serial
def test_a_fast_tail_does_not_stall_the_page(browser: Any, visit: Open, filled: Server) -> None:
    with te.connect(filled.url, ADMIN) as db:
        db.topic("firehose").append([0])
    page: Any = visit("#/topics/firehose")
    page.get_by_role("region", name="Records, the newest first").wait_for()
    page.evaluate(MEASURE)
    browser.start_tracing(page=page, categories=["toplevel"])
    ended, written = threading.Event(), [0]
    writer = threading.Thread(target=write, args=(filled.url, ended, written))
    writer.start()
    try:
        page.wait_for_timeout(SECONDS * 1000)
    finally:
        ended.set()
        writer.join()
    tasks = task_times(browser.stop_tracing())
    page.locator(".status", has_text=f"{written[0] + 1:,} received").wait_for()
    frames = sorted(page.evaluate("frames_"))
    paints = page.evaluate("paints_.length")
    intervals = page.evaluate("(paints_.at(-1) - begun_)") / REPAINT_MS
    rows = page.locator(".records tbody tr").count()
    print(
        f"{written[0] / SECONDS:,.0f} records/s; longest task {tasks[-1]:.0f} ms of processor "
        f"time, all {sum(tasks) / SECONDS / 10:.0f} % of a core; {paints} paints of the table; "
        f"{len(frames)} frames, median "
        f"{frames[len(frames) // 2]:.0f} ms, p99 {frames[int(len(frames) * 0.99)]:.0f} ms, longest "
        f"{frames[-1]:.0f} ms"
    )
    assert len(tasks) > 100, "the trace has the page's tasks"
    assert 2 <= paints <= intervals + 2
    assert rows == SHOWN
    if GATE == "release":
        assert written[0] >= 0.8 * RATE * SECONDS, "the writer keeps the rate"
        assert tasks[-1] + tasks[-2] <= FRAME_MS
