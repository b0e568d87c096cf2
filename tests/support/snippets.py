"""The snippets of the documentation: the fences of its pages."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
FENCE = re.compile(r"^(```+)([^\n`]*)\n(.*?)^\1[ ]*$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Snippet:
    """A fence of a page."""

    language: str
    title: str | None
    runs: bool
    text: str
    line: int
    expected: str | None
    """What it prints, where the page says so."""


def snippets(page: Path) -> Iterator[Snippet]:
    text = page.read_text()
    found = list(FENCE.finditer(text))
    for at, fence in enumerate(found):
        info, body = fence[2].strip(), fence[3]
        words = re.findall(r"[\w-]+", info.partition("title=")[0])
        title = re.search(r'title="([^"]+)"', info)
        expected = None
        if at + 1 < len(found):
            after = found[at + 1]
            if after[2].strip() == "text" and not text[fence.end() : after.start()].strip():
                expected = after[3]
        language = words[0] if words else ""
        runs = language in ("python", "sh", "console") and "not-run" not in words
        line = text.count("\n", 0, fence.start()) + 1
        yield Snippet(language, title and title[1], runs, body, line, expected)
