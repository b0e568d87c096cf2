"""axe-core, which finds what a page lacks for those who cannot see it or use no mouse."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

AXE = (Path(__file__).parent / "axe.min.js").read_text()
"""The script; a page evaluates it once."""


def violations(page: Any, where: str, scheme: str) -> int:
    """Checks what is shown. Of the dark scheme only the colours differ."""
    only = {"runOnly": ["color-contrast"]} if scheme == "dark" else {}
    found = page.evaluate("how => axe.run(document, how)", {"resultTypes": ["violations"], **only})
    told = [
        {"rule": v["id"], "at": [node["html"][:200] for node in v["nodes"]]}
        for v in found["violations"]
    ]
    assert told == [], f"{where}: {json.dumps(told, indent=1)}"
    return len(found["passes"])
