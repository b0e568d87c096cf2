"""The gate of the tests (`TOPICS_GATE`), their sizes, their seeds, and the limits of figures.

`quick` (the default) and `full` have the same verdict in every run of the same tree. `explore` and
`release` use random seeds, and check limits on time and memory.
"""

from __future__ import annotations

import os
import random

SIZES = ("quick", "full", "explore", "release")
GATE = os.environ.get("TOPICS_GATE") or "quick"

if GATE not in SIZES:
    raise ValueError(f"TOPICS_GATE={GATE!r}: expected quick, full, explore or release")

EXPLORES = GATE in ("explore", "release")
"""Whether seeds are random and figures have limits."""

FIXED_SEED = 0x7091C5EE


def sized(quick: int, full: int, release: int) -> int:
    """The size for this gate; `explore` has that of `full`."""
    return {"quick": quick, "release": release}.get(GATE, full)


def run_seed() -> int:
    """`TOPICS_SEED`, or a fixed seed, or a random one where the gate explores. Prints it."""
    default = random.SystemRandom().randrange(1 << 32) if EXPLORES else FIXED_SEED
    seed = int(os.environ.get("TOPICS_SEED") or default)
    print(f"seed {seed}")
    return seed


def figure(name: str, value: float, *, below: float, unit: str = "") -> None:
    """Prints a measured value. Where the gate explores, it must be below the limit.

    For what depends on the machine: times, rates, memory.
    """
    print(f"{name}: {value:.4g} {unit}".rstrip() + f" (limit {below:.4g})")
    assert not EXPLORES or value < below, f"{name}: {value:.4g} {unit}, expected below {below:.4g}"


def fix_examples() -> None:
    """Has Hypothesis draw the same examples in every run, unless the gate explores. A slow machine
    fails none of them.
    """
    import hypothesis
    from hypothesis.internal.conjecture import providers

    hypothesis.settings.register_profile(
        "gate",
        derandomize=not EXPLORES,
        deadline=None,
        suppress_health_check=[hypothesis.HealthCheck.too_slow],
    )
    hypothesis.settings.load_profile("gate")
    if not EXPLORES:
        # It also draws the constants of all modules of ours that are imported by now, which depends
        # on the tests before. There is no setting for it; the version is pinned.
        providers._get_local_constants = lambda: providers._local_constants
