"""A headless Chromium for tests of the console.

`make browser` installs it where it can. A test without a browser is skipped, with the reason; at
the release gate it fails.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from .gate import GATE

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
ARGUMENTS = (
    "--no-sandbox --disable-gpu --disable-background-networking --disable-component-update "
    "--disable-sync --no-first-run --disable-dev-shm-usage"
).split()


def chromium() -> str:
    """The path of the browser (`CHROMIUM`, or one of the usual names); fails or skips without."""
    given = os.environ.get("CHROMIUM")
    found = given or next(filter(None, map(shutil.which, NAMES)), None)
    if found:
        return found
    reason = "no Chromium: run `make browser` as root, or set CHROMIUM to its path"
    if GATE == "release":
        pytest.fail(reason)
    pytest.skip(reason)


def browsers() -> Iterator[Any]:
    """A running browser. End it before other tests of the process use asyncio: Playwright's loop
    runs in this thread until then.
    """
    path = chromium()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield browser
        browser.close()


class Problems:
    """What must not happen on any page: errors, dialogs, refusals by the content policy."""

    def __init__(self, page: Any) -> None:
        self.found: list[str] = []
        page.on("pageerror", lambda error: self.found.append(f"error: {error}"))
        page.on("console", self._message)
        page.on("dialog", self._dialog)

    def _message(self, message: Any) -> None:
        # The browser itself logs each refused request.
        if message.type == "error" and "Failed to load resource" not in message.text:
            self.found.append(f"console: {message.text}")

    def _dialog(self, dialog: Any) -> None:
        self.found.append(f"dialog: {dialog.message}")
        dialog.dismiss()
