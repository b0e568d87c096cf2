"""Every view in a browser: what it shows, what it does, and that the keyboard is enough."""

from __future__ import annotations

from typing import Any

import pytest

import topics_engine as te
from support.server import Server
from support.waiting import until

from .conftest import Open
from .dataset import ADMIN, ERROR, VIEWS

LARGE = 12345678901234567890
"""An integer that a double cannot hold."""


@pytest.fixture
def db(filled: Server) -> Any:
    with te.connect(filled.url, ADMIN) as connected:
        yield connected


def row(page: Any, table: str, name: str) -> Any:
    return (
        page.get_by_role("region", name=table, exact=True).get_by_role("row").filter(has_text=name)
    )


def tab_to(page: Any, role: str, name: str) -> None:
    """Presses Tab until the element has the focus."""
    target = page.get_by_role(role, name=name, exact=True)
    target.wait_for()
    for _ in range(60):
        if target.evaluate("e => e === document.activeElement"):
            return
        page.keyboard.press("Tab")
    pytest.fail(f"Tab does not reach the {role} {name!r}")


def test_the_topics_are_listed_and_searched(visit: Open) -> None:
    page = visit("#/topics")
    line = row(page, "Topics", "orders.audit")
    line.wait_for()
    assert row(page, "Topics", "clicks").get_by_text("memory", exact=True).count() == 1
    page.keyboard.press("/")
    page.keyboard.type("orders.")
    row(page, "Topics", "clicks").wait_for(state="detached")
    assert line.count() == 1
    page.get_by_label("Name begins with").fill("sensors")
    lost = row(page, "Topics", "sensors").get_by_role("cell").filter(has_text="by limits")
    assert lost.inner_text().split() == ["80", "80", "by", "limits"]
    # Lag: the consumer that begins at the start has read nothing.
    page.get_by_label("Name begins with").fill("orders")
    assert "400" in row(page, "Topics", "fsync").inner_text().split("\t")


def test_a_topic_is_created_edited_and_dropped_by_keyboard(visit: Open, db: te.Database) -> None:
    page = visit("#/topics")
    page.get_by_role("region", name="Topics").wait_for()
    tab_to(page, "button", "Create topic")
    page.keyboard.press("Enter")
    tab_to(page, "textbox", "Name")
    page.keyboard.type("made.here")
    tab_to(page, "textbox", "ttl_ms")
    page.keyboard.type("60000")
    page.keyboard.press("Enter")
    row(page, "Topics", "made.here").wait_for()
    assert db.topic("made.here").state().config["ttl"] == 60

    tab_to(page, "button", "Edit made.here")
    page.keyboard.press("Enter")
    tab_to(page, "textbox", "cap_records")
    page.keyboard.press("ControlOrMeta+a")
    page.keyboard.type("77")
    change = (
        page.get_by_role("table", name="Changes").get_by_role("row").filter(has_text="cap_records")
    )
    assert change.inner_text().split() == ["cap_records", "0", "77"]
    tab_to(page, "button", "Save changes")
    page.keyboard.press("Enter")
    page.get_by_role("dialog").wait_for(state="detached")
    assert db.topic("made.here").state().config["cap_records"] == 77

    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "Edit made.here"
    tab_to(page, "button", "Drop made.here")
    page.keyboard.press("Enter")
    assert page.get_by_role("button", name="Drop topic").is_disabled()
    tab_to(page, "textbox", "Type the name to confirm")
    page.keyboard.type("made.here")
    page.keyboard.press("Enter")
    row(page, "Topics", "made.here").wait_for(state="detached")
    assert "made.here" not in db


def test_limits_are_typed_and_shown_with_their_units(visit: Open, db: te.Database) -> None:
    topic = db.topic("limited")
    topic.create()
    page = visit("#/topics/limited")

    def edit(field: str, text: str) -> None:
        page.get_by_label(field, exact=True).fill(text)

    page.get_by_role("button", name="Edit config").click()
    assert page.get_by_label("type", exact=True).is_disabled()
    edit("ttl_ms", "soon")
    page.get_by_role("button", name="Save changes").click()
    page.get_by_role("alert").get_by_text("ttl_ms: soon is not a number with a unit").wait_for()
    edit("ttl_ms", "7d")
    edit("cap_bytes", "1.5 gib")
    edit("idempotency_window_ms", "90000")
    changes = page.get_by_role("table", name="Changes").get_by_role("row")
    assert [line.split("\t") for line in changes.all_inner_texts()[1:]] == [
        ["ttl_ms", "0", "7d"],
        ["cap_bytes", "0", "1536MiB"],
        ["idempotency_window_ms", "2m", "90s"],
    ]
    page.get_by_role("button", name="Save changes").click()
    page.get_by_role("dialog").wait_for(state="detached")
    config = topic.state().config
    assert (config["ttl"], config["cap_bytes"]) == (604_800, 1536 << 20)
    assert config["idempotency_window"] == 90
    page.get_by_role("button", name="Edit config").click()
    page.get_by_role("dialog").get_by_label("cap_bytes").wait_for()
    assert page.get_by_label("ttl_ms").input_value() == "7d"
    assert page.get_by_label("cap_bytes").input_value() == "1536MiB"


@pytest.mark.parametrize("view", VIEWS)
def test_a_narrow_page_has_its_menu_in_one_line(visit: Open, view: str) -> None:
    page = visit(VIEWS[view])
    page.locator("main .counters").wait_for()
    page.set_viewport_size({"width": 320, "height": 640})
    assert page.evaluate("document.documentElement.scrollWidth") == 320
    tops = page.locator("nav a").evaluate_all("all => all.map(a => a.getBoundingClientRect().top)")
    assert len(tops) == 4
    assert len(set(tops)) == 1


def test_the_focus_stays_while_the_page_repaints(visit: Open, db: te.Database) -> None:
    page = visit("#/topics")
    link = page.get_by_role("link", name="clicks")
    link.focus()
    before = row(page, "Topics", "clicks").inner_text()
    db.topic("clicks").append([1])
    until(lambda: row(page, "Topics", "clicks").inner_text() != before)
    assert link.evaluate("e => e === document.activeElement")


def test_a_tail_follows_pauses_and_goes_on(visit: Open, db: te.Database) -> None:
    page = visit("#/topics/orders")
    records = page.get_by_role("region", name="Records, the newest first")
    records.wait_for()
    topic = db.topic("orders")
    seq = topic.append([{"said": "first"}]).last_seq
    records.get_by_text('{"said":"first"}').wait_for()
    page.keyboard.press("p")
    page.get_by_role("button", name="Resume").wait_for()
    later = topic.append(
        [{"said": "second"}, {"said": "third", "n": 12345678901234567890}]
    ).last_seq
    page.get_by_text(f"{later:,}", exact=True).first.wait_for()
    assert records.get_by_text("second").count() == 0
    page.keyboard.press("p")
    records.get_by_text("third").wait_for()
    assert records.get_by_text("second").count() == 1
    assert records.get_by_text(str(LARGE)).count() == 1, "no digit is lost"
    assert records.get_by_role("button", name=f"Record {seq}", exact=True).count() == 1
    page.get_by_label("Only tag").fill("us:*")
    page.keyboard.press("Enter")
    page.get_by_text("No record with tag us:* yet.").or_(records).first.wait_for()
    topic.append(["from the west"], tag="us:9")
    topic.append(["from the east"], tag="eu:9")
    records.get_by_text("from the west").wait_for()
    assert records.get_by_text("from the east").count() == 0


def test_a_pause_of_a_quiet_tail_misses_nothing(visit: Open, db: te.Database) -> None:
    db.topic("quiet").create()
    page = visit("#/topics/quiet")
    page.get_by_text("No records yet").wait_for()
    # Until its stream has caught up, a pause has no place to go on from.
    until(lambda: db.metrics()["watch_streams"] >= 1)
    page.get_by_role("button", name="Pause").click()
    db.topic("quiet").append([{"n": n} for n in range(120)])
    page.get_by_role("button", name="Resume").click()
    page.locator(".status", has_text="120 received").wait_for()


def test_a_record_opens_as_a_tree(visit: Open) -> None:
    page = visit("#/topics/clicks")
    tab_to(page, "button", "Record 480")
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog", name="Record 480")
    assert "/product/479" in dialog.get_by_role("group", name="Payload").inner_text()
    page.keyboard.press("Escape")
    dialog.wait_for(state="detached")
    assert page.evaluate("document.activeElement.dataset.seq") == "480"


def test_records_are_found_by_seq_time_tag_and_text(visit: Open, db: te.Database) -> None:
    page = visit("#/topics/clicks")
    page.get_by_role("tab", name="Live tail").focus()
    page.keyboard.press("ArrowRight")
    records = page.get_by_role("region", name="Records, the oldest first")
    records.wait_for()
    first = records.locator("tbody tr").first
    go = page.get_by_role("button", name="Go")
    page.get_by_label("From seq").fill("250")
    go.click()
    first.get_by_role("button", name="Record 250").wait_for()
    page.get_by_label("Containing text").fill("/product/333")
    go.click()
    first.get_by_role("button", name="Record 334").wait_for()
    assert records.locator("tbody tr").count() == 1
    page.get_by_text("At the head").wait_for()
    marker = db.topic("clicks").append(["a marker"], tag="m:1").last_seq
    page.get_by_label("Containing text").fill("")
    page.get_by_label("From seq").fill("")
    page.get_by_label("Only tag").fill("m:*")
    go.click()
    records.get_by_role("button", name=f"Record {marker}", exact=True).wait_for()
    page.get_by_label("Only tag").fill("")
    page.get_by_label("From time").fill("2001-01-01T00:00")
    go.click()
    page.get_by_role("button", name="Continue").wait_for()
    assert records.locator("tbody tr").count() >= 100


def test_a_search_has_a_budget_and_goes_on(visit: Open, db: te.Database) -> None:
    topic = db.topic("haystack")
    for _ in range(5):
        topic.append([{"hay": n} for n in range(5000)])
    topic.append(["needle"])
    page = visit("#/topics/haystack")
    page.get_by_role("tab", name="Browse").click()
    page.get_by_label("Containing text").fill("needle")
    page.get_by_role("button", name="Go").click()
    page.get_by_text("20,000 of 25,001 looked at, 0 shown.").wait_for()
    page.get_by_role("button", name="Continue").click()
    page.get_by_text("25,001 of 25,001 looked at, 1 shown.").wait_for()


def test_gaps_and_segments_are_shown(visit: Open) -> None:
    page = visit("#/topics/sensors")
    page.get_by_role("tab", name="Browse").click()
    records = page.get_by_role("region", name="Records, the oldest first")
    page.get_by_label("From seq").fill("1")
    page.get_by_role("button", name="Go").click()
    records.get_by_text("Gap: seqs 1 to 80 were evicted (cap)").wait_for()
    page.get_by_role("tab", name="Segments and gaps").click()
    segments = page.get_by_role("region", name="Segments")
    assert "81" in segments.get_by_role("row").nth(1).inner_text()
    gaps = page.get_by_role("region", name="Gaps").get_by_role("row").nth(1)
    assert gaps.inner_text().split("\t")[:3] == ["1", "80", "80"]


def test_one_record_is_appended(visit: Open, db: te.Database) -> None:
    page = visit("#/topics/orders")
    page.get_by_role("button", name="Append").click()
    page.get_by_label("Data").fill("{not json")
    page.get_by_role("button", name="Append record").click()
    page.get_by_role("alert").get_by_text("not valid JSON").wait_for()
    page.get_by_label("Data").fill('{"by": "hand", "n": 9007199254740993}')
    page.get_by_label("Tag").last.fill("hand:1")
    page.get_by_role("button", name="Append record").click()
    page.get_by_role("dialog").wait_for(state="detached")
    (record,) = db.topic("orders").tail(1)
    assert (record.data, record.tag) == ({"by": "hand", "n": 9007199254740993}, "hand:1")


def test_a_queue_is_a_board_of_jobs(visit: Open, db: te.Database) -> None:
    queue = db.queue("board", max_deliveries=1, lease="10m")
    queue.append([{"n": n} for n in range(4)])
    queue.append([{"n": "later"}], delay="10m")
    (failed,) = queue.claim("worker-0")
    failed.nack(error=ERROR)
    queue.claim("worker-1")
    page = visit("#/queues")
    page.get_by_role("link", name="board").click()

    def jobs(state: str) -> Any:
        return page.get_by_role("region", name=f"{state} jobs")

    jobs("Leased").get_by_text("worker-1").wait_for()
    jobs("Dead").get_by_role("button", name="Job 1", exact=True).click()
    dialog = page.get_by_role("dialog", name="Job 1")
    assert ERROR in dialog.inner_text()
    dialog.get_by_role("button", name="Retry").click()
    jobs("Ready").get_by_role("button", name="Job 1", exact=True).wait_for()
    jobs("Delayed").get_by_role("button", name="Job 5", exact=True).click()
    page.get_by_role("button", name="Make ready now").click()
    jobs("Ready").get_by_role("button", name="Job 5", exact=True).click()
    page.get_by_role("button", name="Remove").click()
    jobs("Ready").get_by_role("button", name="Job 5", exact=True).wait_for(state="detached")
    page.get_by_role("button", name="Pause claims").click()
    page.get_by_text("paused", exact=True).wait_for()
    assert queue.claim("worker-2") == []
    page.get_by_role("button", name="Resume claims").click()
    page.get_by_role("button", name="Pause claims").wait_for()
    (again,) = queue.claim("worker-2")
    again.nack(error="again")
    page.get_by_role("button", name="Redrive").click()
    page.get_by_role("button", name="Count first").click()
    page.get_by_text("1 jobs would move.").wait_for()
    page.get_by_role("dialog").get_by_role("button", name="Redrive", exact=True).click()
    page.get_by_role("dialog").wait_for(state="detached")
    assert queue.state().queue["dead"] == 0


def test_the_board_shows_errors_whole(visit: Open, db: te.Database) -> None:
    error = "Traceback (most recent call last):\n" + "  no such mailbox " * 40 + "at the end"
    queue = db.queue("failing", max_deliveries=2)
    queue.append([1])
    for state in ("Delayed", "Dead"):
        (job,) = queue.claim("worker-0")
        job.nack(delay=600 if state == "Delayed" else 0, error=error)
        page = visit("#/queues/failing")
        shown = page.get_by_role("region", name=f"{state} jobs").get_by_text("at the end")
        shown.wait_for()
        assert shown.evaluate("e => e.textContent") == error
        assert shown.evaluate("e => e.scrollWidth <= e.clientWidth")
        db.queue("failing").promote([job.seq])


def test_consumers_and_routers_are_made_moved_and_removed(visit: Open, db: te.Database) -> None:
    db.topic("source").append([1, 2, 3])
    page = visit("#/consumers")
    row(page, "Consumers", "billing").wait_for()
    page.get_by_role("button", name="Add consumer").click()
    page.get_by_label("Topic").fill("source")
    page.get_by_label("Name").fill("made")
    page.get_by_role("button", name="Add", exact=True).click()
    assert "3" in row(page, "Consumers", "made").inner_text().split()
    page.get_by_role("button", name="Seek made of source").click()
    page.get_by_label("To", exact=True).select_option("seq")
    page.get_by_label("After seq").fill("2")
    page.get_by_role("button", name="Set cursor").click()
    page.get_by_role("dialog").wait_for(state="detached")
    assert [c.lag for c in db.consumers() if c.name == "made"] == [1]
    page.get_by_role("button", name="Remove made of source").click()
    page.get_by_role("button", name="Remove", exact=True).last.click()
    row(page, "Consumers", "made").wait_for(state="detached")
    page.get_by_role("button", name="Add router").click()
    page.get_by_label("Name").fill("copies")
    page.get_by_label("From topic").fill("source")
    page.get_by_label("To topic").fill("copied")
    page.get_by_role("button", name="Add", exact=True).click()
    row(page, "Routers", "copies").wait_for()
    page.get_by_role("button", name="Remove copies").click()
    page.get_by_role("button", name="Remove", exact=True).last.click()
    row(page, "Routers", "copies").wait_for(state="detached")


def test_the_engine_shows_its_health_and_its_latencies(visit: Open, db: te.Database) -> None:
    page = visit("#/engine")
    row(page, "Health", "Dead jobs").get_by_text("look").wait_for()
    assert "Open the queue" in row(page, "Health", "Dead jobs").inner_text()
    row(page, "Health", "Accepts writes").get_by_text("good").wait_for()
    for chart in ("Disk sync: calls by duration", "Append: calls by duration"):
        assert page.get_by_role("img", name=chart).locator("canvas").count() == 1
    assert page.get_by_role("region", name="Disk sync: quantiles").get_by_role("row").count() == 6
    page.get_by_role("button", name="Checkpoint now").click()
    count = page.locator("div:has(> dt:text-is('checkpoints')) > dd")
    until(lambda: count.inner_text() != "0")


def test_shortcuts_lead_to_the_views(visit: Open) -> None:
    page = visit("#/topics")
    page.get_by_role("heading", name="Topics", level=1).wait_for()
    for number, title in (
        (2, "Queues"),
        (3, "Consumers and routers"),
        (4, "Engine"),
        (1, "Topics"),
    ):
        page.keyboard.press(str(number))
        page.get_by_role("heading", name=title, level=1).wait_for()
    page.keyboard.press("?")
    page.get_by_role("dialog", name="Keyboard").wait_for()
    page.keyboard.press("Escape")
    page.get_by_role("dialog").wait_for(state="detached")


def test_a_server_that_goes_away_and_comes_back(visit: Open, own_server: Server) -> None:
    own_server.start()
    page = visit("#/topics", key="", url=own_server.url)
    page.get_by_text("There are no topics yet.").wait_for()
    assert own_server.stop() == 0
    page.get_by_role("alert").get_by_text("does not answer").wait_for()
    own_server.start()
    page.get_by_role("alert").wait_for(state="detached")
    assert own_server.stop() == 0


def test_a_tail_is_live_only_while_it_is_connected(visit: Open, own_server: Server) -> None:
    own_server.start()
    with te.connect(own_server.url) as db:
        db.topic("t").append([1])
        page = visit("#/topics/t", key="", url=own_server.url)
        status = page.locator("#tail-status")
        status.get_by_text("live", exact=True).wait_for()
    assert own_server.stop() == 0
    status.get_by_text("not connected", exact=True).wait_for()
    assert page.get_by_text("live", exact=True).count() == 0
    page.get_by_text("Figures on this page are of").wait_for()
    own_server.start()
    status.get_by_text("live", exact=True).wait_for()
    page.get_by_role("alert").first.wait_for(state="detached")
    page.get_by_role("button", name="Pause").click()
    status.get_by_text("paused", exact=True).wait_for()
    assert own_server.stop() == 0


def test_a_server_that_accepts_and_does_not_answer_is_not_healthy(visit: Open) -> None:
    page = visit("#/engine")
    health = page.locator("div:has(> dt:text-is('health')) > dd")
    health.wait_for()
    page.route("**/v0/metrics", lambda route: None)
    page.get_by_role("alert").get_by_text("does not answer").wait_for()
    assert health.inner_text() == "unknown"
    page.unroute_all(behavior="ignoreErrors")
    page.get_by_role("alert").wait_for(state="detached")
    assert health.inner_text() != "unknown"
