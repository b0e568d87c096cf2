"""Checks the types of every Python snippet of the documentation, in one run of `mypy --strict`.

The snippets of a page build on each other, so they are one module; one with a title is a module of
that name. Lines have the numbers that they have on the page. Snippets that are marked as not run,
which are fragments or programs for another product, are left out.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))
from support.snippets import DOCS, ROOT, Snippet, snippets

MODULES = ROOT / "target" / "snippets"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
SUMMARIES = [
    ROOT / "README.md",
    *(DOCS / f"{name}.md" for name in ("delivery", "http", "python", "queues", "transactions")),
]
"""Pages that show what there is, beside programs that the reader has: `NAMES` declares these."""
NAMES = """
from collections.abc import Callable
from datetime import datetime
from typing import Any

import pyarrow as pyarrow
import topics_engine as topics_engine

te = topics_engine
db: te.Database
engine: te.Database
orders: te.Topic
consumer: te.Consumer
job: te.Job
url: str
noon: datetime
seq: int
rows: list[dict[str, Any]]
handle: Callable[[te.Record | te.Gap], object]
make: Callable[[Any], object]
send: Callable[[Any], Any]
store: Callable[[dict[str, int]], object]
work: Callable[[Any], object]
"""
ERROR = re.compile(r"^(?:.*/)?(\w+)\.pyi?:(\d+): error: (.*)", re.MULTILINE)


def code_of(snippet: Snippet, page: Path) -> str:
    """The code of a snippet, from the line before its fence on."""
    if page not in SUMMARIES:
        return f"\n\n{snippet.text}"
    awaits = re.search(r"^(async |.*\bawait )", snippet.text, re.MULTILINE)
    head = f"async def line_{snippet.line}() -> None:" if awaits else ""
    return f"from names import *\n{head}\n{textwrap.indent(snippet.text, '    ' * bool(awaits))}"


def write_modules() -> tuple[dict[str, Path], int]:
    """Writes the modules. Returns the page of each, and how many snippets there are."""
    shutil.rmtree(MODULES, ignore_errors=True)
    MODULES.mkdir(parents=True)
    (MODULES / "names.pyi").write_text(NAMES)
    pages: dict[str, Path] = {}
    texts: dict[str, str] = {}
    count = 0
    for page in PAGES:
        for snippet in snippets(page):
            if snippet.language != "python" or not snippet.runs:
                continue
            count += 1
            own = "_".join(page.relative_to(ROOT).with_suffix("").parts).replace("-", "_")
            module = own if snippet.title is None else Path(snippet.title).stem
            if pages.setdefault(module, page) != page:
                sys.exit(f"{page}: {pages[module]} has a snippet with the name {module}, too")
            text = texts.get(module, "")
            padding = "\n" * (snippet.line - 2 - text.count("\n"))
            texts[module] = f"{text}{padding}{code_of(snippet, page)}"
    for module, text in texts.items():
        (MODULES / f"{module}.py").write_text(text)
    return pages, count


def main() -> None:
    pages, count = write_modules()
    modules = sorted(str(path) for path in MODULES.iterdir())
    paths = [ROOT / "python", ROOT / "spark", MODULES]
    done = subprocess.run(
        # A later snippet may use a name of an earlier one for something else.
        [sys.executable, "-m", "mypy", "--strict", "--allow-redefinition", *modules],
        cwd=ROOT,
        env=os.environ | {"MYPYPATH": os.pathsep.join(map(str, paths))},
        capture_output=True,
        text=True,
    )
    found = ERROR.findall(done.stdout)
    for module, line, message in found:
        print(f"{pages[module].relative_to(ROOT) if module in pages else module}:{line}: {message}")
    print(f"{count} snippets on {len(set(pages.values()))} pages: {len(found)} errors")
    if done.returncode != 0:
        sys.exit(done.stderr or 1)


if __name__ == "__main__":
    main()
