"""An mkdocs hook: it adds pages from elsewhere in the repository, and converts links and diagrams.

A link to a file that the site has as a page points to that page, a link to any other file outside
of `docs/` becomes plain text. A link to a file that does not exist, or a diagram that was not drawn
since it changed, fails the build.
"""

from __future__ import annotations

import posixpath
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

sys.path.append(str(Path(__file__).parent))
import diagrams

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"

PAGES = {
    "crates/topics-storage/FORMAT.md": "internals/format.md",
    "CONTRIBUTING.md": "internals/contributing.md",
    "CHANGELOG.md": "internals/changelog.md",
    "SECURITY.md": "internals/security.md",
}
"""Files elsewhere in the repository, and their paths in the site."""


def on_files(files: Files, config: Any) -> Files:
    """Adds the pages that are outside of `docs/`."""
    for source, uri in PAGES.items():
        files.append(File.generated(config, uri, content=(ROOT / source).read_text()))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Converts links that point out of `docs/`, and diagrams."""
    uri = page.file.src_uri
    source = next((s for s, u in PAGES.items() if u == uri), f"docs/{uri}")
    try:
        markdown = diagrams.FENCE.sub(lambda found: diagram(found[1], uri), markdown)
        return re.sub(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)", lambda m: link(m, source, uri), markdown)
    except ValueError as wrong:
        raise PluginError(f"{uri}: {wrong}") from wrong


def link(found: re.Match[str], source: str, uri: str) -> str:
    """Converts a link to its form in the site."""
    bang, text, target = found.groups()
    path, _, anchor = target.partition("#")
    if bang or not path or ":" in path:
        return found[0]
    meant = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
    if meant.startswith("docs/") and not source.startswith("docs/"):
        at = meant.removeprefix("docs/")
    elif meant in PAGES:
        at = PAGES[meant]
    elif not (ROOT / meant).exists():
        raise ValueError(f"{target} points to a file that does not exist")
    elif meant.startswith("docs/"):
        return found[0]
    else:
        return text if "`" in text else f"`{meant}`"
    there = posixpath.relpath(at, posixpath.dirname(uri) or ".")
    return f"[{text}]({there}{'#' * bool(anchor)}{anchor})"


def diagram(source: str, uri: str) -> str:
    """The drawn forms of a diagram, of which the page shows the one for its color scheme."""
    parts = []
    for scheme in diagrams.SCHEMES:
        path = diagrams.DRAWN / diagrams.name_of(source, scheme)
        if not path.is_file():
            raise ValueError("a diagram has changed; run `make diagrams`")
        there = posixpath.relpath(path.relative_to(DOCS).as_posix(), posixpath.dirname(uri) or ".")
        parts.append(f"![Diagram]({there}#only-{scheme})")
    return "\n".join(parts)
