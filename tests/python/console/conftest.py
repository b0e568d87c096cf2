"""A server with keys and data, and pages of a headless browser."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.browser import Problems, browsers
from support.server import Server, opened

from .dataset import ADMIN, KEYS, fill

Open = Callable[..., Any]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leaves the tests of this folder that need a browser to the full gate."""
    for item in items:
        here = item.path.is_relative_to(Path(__file__).parent)
        if here and "browser" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    yield from browsers()


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server whose data no test changes for the others."""
    directory: Path = tmp_path_factory.mktemp("console") / "data"
    with opened(directory, {"TOPICS_API_KEYS": KEYS}) as server:
        fill(server.url)
        yield server


@pytest.fixture
def visit(browser: Any, filled: Server) -> Iterator[Open]:
    """Opens a view with a key. At the end no page may have had a problem."""
    opened_pages: list[tuple[Any, Problems]] = []

    def visit(view: str, key: str = ADMIN, url: str = filled.url, **how: Any) -> Any:
        context = browser.new_context(viewport={"width": 1280, "height": 860}, **how)
        context.set_default_timeout(120_000)
        if key:
            context.add_init_script(f"sessionStorage.setItem('topics-key', {key!r})")
        page = context.new_page()
        opened_pages.append((page, Problems(page)))
        page.goto(f"{url}/console{view}")
        return page

    yield visit
    problems = [found for _, each in opened_pages for found in each.found]
    for page, _ in opened_pages:
        page.context.close()
    assert problems == []
