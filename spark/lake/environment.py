"""The Sparks that are not the one of this environment, beside its packages: the older ones that the
tests run on, and those of the lake. Delta 4.4 is built for Spark 4.2; its streams do not run on
Spark 4.3. Iceberg 1.12 is built for Spark 4.1, and does not run on a later one.

    python -m lake.environment GROUP COMMAND...    runs a command with the Spark of a group
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DELTA, ICEBERG = "lake-delta", "spark-4.1"
"""The groups of pyproject.toml that name them."""


class Unavailable(Exception):
    """A download that the example needs has failed."""


def pinned(group: str) -> str:
    """The version of pyspark in a group."""
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]
    (requirement,) = groups[group]
    name, _, version = requirement.partition("==")
    assert name == "pyspark", requirement
    return str(version)


def environment(group: str) -> dict[str, str]:
    """The environment of a process that uses the Spark of a group; it is downloaded the first time.

    Raises:
        Unavailable: it cannot be downloaded.
    """
    version = pinned(group)
    folder = ROOT / "target" / f"spark-{version}"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "installed").exists():
            _install(version, folder)
            (folder / "installed").touch()
    paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def _install(version: str, folder: Path) -> None:
    """Installs Spark without its dependencies, which this environment has for its own Spark."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--upgrade"]
    command += ["--target", str(folder), f"pyspark=={version}"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        raise Unavailable(f"pyspark {version} cannot be installed: {lines[-1] if lines else ''}")


def main() -> None:
    group, *command = sys.argv[1:]
    try:
        env = environment(group)
    except Unavailable as e:
        sys.exit(str(e))
    os.execvpe(command[0], command, env)


if __name__ == "__main__":
    main()
