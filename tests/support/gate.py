"""The gate of the tests: `TOPICS_GATE` is quick (the default), commit or release; and their
seeds."""

from __future__ import annotations

import os
import random

GATE = os.environ.get("TOPICS_GATE") or "quick"
SIZES = ("quick", "commit", "release")

if GATE not in SIZES:
    raise ValueError(f"TOPICS_GATE={GATE!r}: expected quick, commit or release")


def sized(quick: int, commit: int, release: int) -> int:
    """The size for this gate."""
    return (quick, commit, release)[SIZES.index(GATE)]


def fresh_seed() -> int:
    """The seed of the run (`TOPICS_SEED`), or a new one, which is printed."""
    seed = int(os.environ.get("TOPICS_SEED") or random.SystemRandom().randrange(1 << 32))
    print(f"seed {seed}")
    return seed
