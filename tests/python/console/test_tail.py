"""A tail of 5 000 records a second, and how long the page takes for its frames meanwhile."""

from __future__ import annotations

import json
import threading
import time
from typing import Any

import pytest

import topics_engine as te
from support.gate import EXPLORES, figure
from support.server import Server

from .conftest import Open
from .dataset import ADMIN

RATE = 5000
BATCH = 250
SECONDS = 4.0
FRAME_MS = 50

SHOWN = 100
REPAINT_MS = 250

# How long a task takes depends on the machine: it is printed, and limited where the gate explores.
# A frame has two tasks: a timer and a paint. The most paints and rows that there may be do not
# depend on the machine, and are limits at every gate.
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


# Limits on times, which are disturbed by what runs beside it.
pytestmark = [pytest.mark.serial] if EXPLORES else []


def test_a_fast_tail_does_not_stall_the_page(browser: Any, visit: Open, filled: Server) -> None:
    with te.connect(filled.url, ADMIN) as db:
        db.topic("firehose").append([0])
    page: Any = visit("#/topics/firehose")
    page.get_by_role("region", name="Records, the newest first").wait_for()
    page.evaluate(MEASURE)
    browser.start_tracing(page=page, categories=["toplevel"])
    ended, written, start = threading.Event(), [0], time.monotonic()
    writer = threading.Thread(target=write, args=(filled.url, ended, written))
    writer.start()
    try:
        page.wait_for_timeout(SECONDS * 1000)
        page.wait_for_function("paints_.length >= 2")
    finally:
        ended.set()
        writer.join()
        seconds = time.monotonic() - start
    tasks = task_times(browser.stop_tracing())
    page.locator(".status", has_text=f"{written[0] + 1:,} received").wait_for()
    frames = sorted(page.evaluate("frames_"))
    paints = page.evaluate("paints_.length")
    intervals = page.evaluate("(paints_.at(-1) - begun_)") / REPAINT_MS
    rows = page.locator(".records tbody tr").count()
    print(
        f"all tasks {sum(tasks) / seconds / 10:.0f} % of a core; {paints} paints of the table; "
        f"{len(frames)} frames, median {frames[len(frames) // 2]:.0f} ms, p99 "
        f"{frames[int(len(frames) * 0.99)]:.0f} ms, longest {frames[-1]:.0f} ms"
    )
    assert tasks, "the trace has the page's tasks"
    assert paints <= intervals + 2
    assert rows == SHOWN
    figure("time for a record", 1e6 * seconds / written[0], below=1.25e6 / RATE, unit="µs")
    figure("the two longest tasks", tasks[-1] + tasks[-2], below=FRAME_MS + 0.001, unit="ms")
