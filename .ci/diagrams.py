"""Draws the diagrams of the documentation: each mermaid fence as an SVG, light and dark.

The site shows the drawn ones, so that a page loads nothing from elsewhere. `make diagrams` draws
them anew, with the `mermaid` that npm fetched and a headless Chromium.
"""

from __future__ import annotations

import hashlib
import re
import sys
from contextlib import contextmanager
from pathlib import Path

DOCS = Path(__file__).resolve().parent.parent / "docs"
DRAWN = DOCS / "assets" / "diagrams"
FENCE = re.compile(r"^```mermaid\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SCHEMES = {"light": "default", "dark": "dark"}
"""The color schemes of the site, and their themes in mermaid."""

DRAW = """async ([source, theme]) => {
    mermaid.initialize({
        startOnLoad: false, theme, fontFamily: "Arial, Helvetica, sans-serif",
        htmlLabels: false, flowchart: {htmlLabels: false}, deterministicIds: true,
    });
    const {svg} = await mermaid.render("diagram", source);
    const root = new DOMParser().parseFromString(svg, "image/svg+xml").documentElement;
    const [, , width, height] = root.getAttribute("viewBox").split(" ");
    root.setAttribute("width", width);
    root.setAttribute("height", height);
    root.removeAttribute("style");
    return new XMLSerializer().serializeToString(root);
}"""


def name_of(source: str, scheme: str) -> str:
    """The file of a diagram. It changes with the source, so that no outdated one is shown."""
    return f"{hashlib.sha256(source.encode()).hexdigest()[:12]}-{scheme}.svg"


def sources() -> set[str]:
    """The diagrams of all pages."""
    return {found[1] for page in DOCS.rglob("*.md") for found in FENCE.finditer(page.read_text())}


def main(mermaid: Path) -> None:
    """Draws every diagram with this file of mermaid, and removes those that no page has."""
    from support.browser import browsers

    DRAWN.mkdir(exist_ok=True)
    drawn = set()
    with contextmanager(browsers)() as browser:
        page = browser.new_page()
        page.add_script_tag(path=mermaid)
        for source in sorted(sources()):
            for scheme, theme in SCHEMES.items():
                path = DRAWN / name_of(source, scheme)
                path.write_text(page.evaluate(DRAW, [source, theme]) + "\n")
                drawn.add(path)
    for path in set(DRAWN.iterdir()) - drawn:
        path.unlink()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
