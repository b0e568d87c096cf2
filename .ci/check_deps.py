"""Checks licences and known advisories of every dependency, without the network.

Crates come from `cargo metadata` and Cargo.lock, Python distributions from the environment that
runs this script. supply.toml in the same directory lists the allowed and denied ones.
"""

from __future__ import annotations

import importlib.metadata as pip
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


def version_key(version: str) -> tuple[int, ...]:
    """The release part of a version, without any suffix, as numbers."""
    return tuple(int(n) for n in re.match(r"[0-9.]*", version)[0].strip(".").split(".") if n)  # type: ignore[index]


def satisfiable(expression: str, allowed: set[str]) -> bool:
    """Whether an SPDX expression can be met with the allowed licences; OR binds weakest."""
    tokens = re.findall(r"\(|\)|[^\s()]+", expression.replace("/", " OR "))

    def alternatives(at: int) -> tuple[bool, int]:
        met, at = conjunction(at)
        while at < len(tokens) and tokens[at] == "OR":
            other, at = conjunction(at + 1)
            met = met or other
        return met, at

    def conjunction(at: int) -> tuple[bool, int]:
        met, at = licence(at)
        while at < len(tokens) and tokens[at] == "AND":
            other, at = licence(at + 1)
            met = met and other
        return met, at

    def licence(at: int) -> tuple[bool, int]:
        if at >= len(tokens):
            return False, at
        if tokens[at] == "(":
            met, at = alternatives(at + 1)
            return met, at + 1
        name, at = tokens[at], at + 1
        if at + 1 < len(tokens) and tokens[at] == "WITH":
            name, at = f"{name} WITH {tokens[at + 1]}", at + 2
        return name in allowed or name.split(" WITH ")[0] in allowed, at

    return alternatives(0)[0]


def crate_licences() -> dict[str, str]:
    host = next(
        line.split()[1]
        for line in subprocess.check_output(["rustc", "-vV"], text=True).splitlines()
        if line.startswith("host:")
    )
    command = ["cargo", "metadata", "--format-version=1", "--locked", "--offline"]
    # The concurrency models have additional crates.
    features = ["--features", "topics-engine/shuttle"]
    out = subprocess.check_output([*command, *features, "--filter-platform", host], cwd=ROOT)
    resolved = {node["id"] for node in json.loads(out)["resolve"]["nodes"]}
    return {
        f"{p['name']} {p['version']}": p["license"] or ""
        for p in json.loads(out)["packages"]
        if p["id"] in resolved
    }


def distribution_licence(meta: Any, rules: dict[str, Any]) -> str:
    known: dict[str, str] = rules["python_licences"]
    if exact := rules["python_distributions"].get(meta["Name"].lower()):
        return str(exact)
    if expression := meta.get("License-Expression"):
        return str(expression)
    classifiers = [
        c.split(" :: ")[-1]
        for c in meta.get_all("Classifier") or []
        if c.startswith("License :: ") and c != "License :: OSI Approved"
    ]
    named = [known.get(c, c) for c in classifiers] or [(meta.get("License") or "").strip()]
    return " AND ".join(known.get(n, n) for n in named)


def denials(name_of: str, have: dict[str, str], rules: list[dict[str, str]]) -> list[str]:
    return [
        f"{rule[name_of]} {have[rule[name_of]]} is below {rule['below']}: {rule['why']}"
        for rule in rules
        if rule.get(name_of) in have
        and version_key(have[rule[name_of]]) < version_key(rule["below"])
    ]


def main() -> int:
    rules = tomllib.loads((ROOT / ".ci/supply.toml").read_text())
    allowed = set(rules["licences"])
    problems: list[str] = []

    crates = crate_licences()
    dists = {
        d.metadata["Name"].lower(): d for d in pip.distributions() if d.metadata["Name"] is not None
    }
    licences = crates | {
        f"{name} {d.version} (Python)": distribution_licence(d.metadata, rules)
        for name, d in dists.items()
        if name not in {"pip", "setuptools", "topics-engine", "topics_engine"}
    }
    for who, licence in sorted(licences.items()):
        if not satisfiable(licence, allowed):
            problems.append(f"{who}: licence {licence!r} is not allowed")

    locked = tomllib.loads((ROOT / "Cargo.lock").read_text())["package"]
    for package in locked:
        problems += denials("crate", {package["name"]: package["version"]}, rules["denied"])
    problems += denials("distribution", {n: d.version for n, d in dists.items()}, rules["denied"])

    for problem in problems:
        print(problem, file=sys.stderr)
    print(f"{len(crates)} crates, {len(dists)} distributions, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
