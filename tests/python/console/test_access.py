"""Keys of each scope in a browser, hostile text in all that others may write, and axe-core."""

from __future__ import annotations

from typing import Any

import pytest

import topics_engine as te
from support.server import Server

from .axe import AXE, violations
from .conftest import Open
from .dataset import ADMIN, VIEWS

MARKUP = (
    "<script>window.pwned=1</script>",
    "<img src=x onerror=window.pwned=1>",
    "<svg/onload=window.pwned=1>",
    '"><iframe srcdoc="<script>parent.pwned=1</script>">',
    "'-window.pwned=1-'",
    "javascript:window.pwned=1",
    "${window.pwned=1}",
    "{{constructor.constructor('window.pwned=1')()}}",
    "</title></style></textarea><b>bold</b>",
    "<a href='javascript:window.pwned=1'>click</a>",
    "\u202emoc.elpmaxe\u202c \u0000\u0007\ufeff",
    "&lt;b&gt;&#60;",
)
FOREIGN = "#app :is(script, iframe, object, b:not(.notice > b), img, base)"
"""Elements that the console itself does not make."""


def buttons(page: Any) -> dict[str, bool]:
    """The buttons for changes, and whether they can be pressed."""
    found = {}
    for button in page.locator("main button[title], main .actions button, main td button").all():
        found[button.inner_text()] = button.is_enabled()
    return found


def test_a_server_with_keys_asks_for_one(visit: Open) -> None:
    page = visit("#/topics", key="")
    field = page.get_by_label("API key")
    field.fill("wrong-key")
    page.keyboard.press("Enter")
    page.get_by_role("alert").get_by_text("there is no such key").wait_for()
    field.fill(ADMIN)
    page.keyboard.press("Enter")
    page.get_by_role("link", name="clicks").wait_for()
    page.reload()
    page.get_by_role("link", name="clicks").wait_for()
    assert ADMIN not in page.url
    assert page.evaluate("localStorage.length + document.cookie.length") == 0
    page.get_by_role("button", name="Forget key").click()
    page.get_by_label("API key").wait_for()
    page.reload()
    page.get_by_label("API key").wait_for()


@pytest.mark.parametrize(
    ("key", "allowed"),
    [
        ("reader-key", set()),
        ("writer-key", {"Append"}),
        ("deleter-key", {"Drop"}),
        (ADMIN, {"Append", "Edit config", "Drop"}),
    ],
)
def test_a_key_changes_what_its_scopes_allow(visit: Open, key: str, allowed: set[str]) -> None:
    page = visit("#/topics/orders", key)
    page.get_by_role("button", name="Append").wait_for()
    shown = buttons(page)
    assert {name for name in ("Append", "Edit config", "Drop") if shown[name]} == allowed
    if "Drop" not in allowed:
        assert page.get_by_role("button", name="Drop").get_attribute("title") == \
            "this key lacks scope delete"  # fmt: skip
    page.get_by_role("region", name="Records, the newest first").wait_for()


def test_a_key_without_read_is_told_so(visit: Open) -> None:
    page = visit("#/topics", "write-only")
    page.get_by_role("alert").get_by_text("this key lacks scope `read`").wait_for()


def test_a_key_for_some_names_sees_those(visit: Open) -> None:
    page = visit("#/topics", "limited-key")
    page.get_by_role("link", name="orders", exact=True).wait_for()
    assert page.get_by_role("region", name="Topics").get_by_role("link").all_inner_texts() == [
        "orders", "orders.audit",
    ]  # fmt: skip
    assert "orders*" in page.locator("header.top").inner_text()
    for view in VIEWS.values():
        page.goto(f"{page.url.split('#')[0]}{view}")
        page.get_by_role("heading", level=1).wait_for()


def unharmed(page: Any) -> None:
    assert page.evaluate("window.pwned") is None
    assert page.locator(FOREIGN).count() == 0
    links = page.locator("#app a").evaluate_all("all => all.map(a => a.getAttribute('href'))")
    assert all(link.startswith("#") for link in links), links


def test_text_is_never_markup(visit: Open, filled: Server) -> None:
    with te.connect(filled.url, ADMIN) as db:
        topic = db.topic("hostile")
        queue = db.queue("hostile-jobs", max_deliveries=1)
        for text in MARKUP:
            clean = text.replace("\x00", "")
            rows = [{"text": text, text: [text, {text: text}]}, text]
            topic.append(rows, tag=clean, origin=clean, meta={"key": clean})
            queue.append(rows[:1], tag=clean, group=clean)
        for job in queue.claim(MARKUP[1], max=4):
            job.nack(error=MARKUP[0])
        queue.claim(MARKUP[4], max=4)
    page = visit("#/topics/hostile")
    records = page.get_by_role("region", name="Records, the newest first")
    records.get_by_text(MARKUP[0]).first.wait_for()
    unharmed(page)
    for seq in range(1, 2 * len(MARKUP) + 1):
        records.get_by_role("button", name=f"Record {seq}", exact=True).click()
        page.get_by_role("dialog").wait_for()
        unharmed(page)
        page.keyboard.press("Escape")
        page.get_by_role("dialog").wait_for(state="detached")
    page.goto(f"{filled.url}/console#/queues/hostile-jobs")
    page.get_by_role("region", name="Dead jobs").get_by_text(MARKUP[0]).first.wait_for()
    unharmed(page)
    page.get_by_role("region", name="Dead jobs").get_by_role("button").first.click()
    page.get_by_role("dialog").get_by_text(MARKUP[0]).first.wait_for()
    unharmed(page)
    page.keyboard.press("Escape")
    # The address, the search and what is typed are text of others, too: a link may have them.
    for text in MARKUP:
        page.goto(f"{filled.url}/console#/topics/{text.replace('#', '%23')}")
        page.get_by_role("alert").wait_for()
        unharmed(page)
    page.goto(f"{filled.url}/console#/topics")
    page.get_by_label("Name begins with").fill(MARKUP[1])
    page.get_by_text("No topic begins with").or_(page.get_by_role("alert")).first.wait_for()
    unharmed(page)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(visit: Open, scheme: str) -> None:
    page = visit("#/topics", color_scheme=scheme, bypass_csp=True, reduced_motion="reduce")
    page.evaluate(AXE)
    checked = 0
    for name, view in VIEWS.items():
        page.evaluate("hash => location.hash = hash", view)
        page.locator("main .counters dd").first.wait_for()
        checked += violations(page, name, scheme)
        for tab in page.get_by_role("tab").all():
            tab.click()
            checked += violations(page, f"{name} {tab.inner_text()}", scheme)
        for opener in page.locator("main .actions button, main .title > button").all():
            if not opener.is_enabled() or opener.inner_text() in ("Pause claims", "Checkpoint now"):
                continue
            title = opener.inner_text()
            opener.click()
            page.get_by_role("dialog").wait_for()
            checked += violations(page, f"{name} {title}", scheme)
            page.keyboard.press("Escape")
            page.get_by_role("dialog").wait_for(state="detached")
    print(f"{checked} rules passed, {scheme}")
    page.evaluate("document.getElementById('app').append(document.createElement('img'))")
    page.evaluate("document.querySelector('h1').style.color = '#777'")
    page.evaluate("document.querySelector('h1').style.background = '#999'")
    with pytest.raises(AssertionError, match="image-alt" if scheme == "light" else "contrast"):
        violations(page, "the check sees faults", scheme)
