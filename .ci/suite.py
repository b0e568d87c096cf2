#!/usr/bin/env python3
"""Runs a test suite and keeps its verdict: counts, seconds, failed and skipped tests by name.

    .ci/suite.py NAME pytest|cargo COMMAND...    runs one suite, prints what it prints
    .ci/suite.py --summary                       prints the verdicts of the suites that ran

With TOPICS_RETRY=1, each failed test is run once more, alone: one that passes then is `unstable`,
and does not fail its suite. `--summary` fails from the third unstable test of all suites on.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
VERDICTS = ROOT / "target" / "suites"
MOST_UNSTABLE = 2
MOST_RETRIES = 10

RUNNING = re.compile(r"^\s+Running (?:unittests )?\S+ \((\S+)\)$")
RUST_TEST = re.compile(r"^test (\S+)(?: - should panic)? \.\.\. (ok|FAILED|ignored|skipped)(.*)$")
RUST_RESULT = re.compile(r"^(test result: |\w+: \d+ passed, \d+ failed)")
SKIPPED = re.compile(r"^skipped: (.+)$")
PYTEST_COUNT = re.compile(r"(\d+) (passed|failed|skipped|errors?|xfailed|deselected)\b")
PYTEST_SKIPPED = re.compile(r"^SKIPPED (\[\d+\] .+)$")


def output_of(command: list[str]) -> tuple[int, list[str]]:
    """Runs a command and prints what it prints. Returns its exit code and its lines."""
    lines = []
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            lines.append(line.rstrip("\n"))
    return process.returncode, lines


def run_pytest(name: str, command: list[str]) -> dict[str, Any]:
    cache = VERDICTS / f"{name}.cache"
    options = ["-o", f"cache_dir={cache}", "--cache-clear", "-rsfE"]
    counts: dict[str, int] = {}
    skips: list[str] = []
    code, lines = output_of([*command, *options])
    for line in lines:
        if found := PYTEST_SKIPPED.match(line):
            skips.append(found[1])
        # The last line: "3 failed, 3712 passed, 76 skipped in 477.10s (0:07:57)".
        if re.search(r" in [\d.]+s\b", line) and (seen := PYTEST_COUNT.findall(line)):
            counts = {kind: int(count) for count, kind in seen}
    # Only a run with a failure writes the file.
    last_failed = cache / "v" / "cache" / "lastfailed"
    failed = sorted(json.loads(last_failed.read_text())) if last_failed.exists() else []
    # One test by name, without the paths, marks and workers of the suite.
    alone = [*command[: command.index("pytest") + 1], "-p", "no:xdist", "-p", "no:cacheprovider"]
    return {
        "passed": counts.get("passed", 0),
        "skipped": counts.get("skipped", 0),
        "skips": skips,
        "failed": failed,
        "ended": code == 0 or (code == 1 and bool(failed)),
        "again": [(node, [*alone, node], str(Path.cwd())) for node in failed],
    }


def run_cargo(name: str, command: list[str]) -> dict[str, Any]:
    passed, skips, failed, binary = 0, [], [], ""
    # A program that is killed, or aborts, prints no result.
    begun, results = 0, 0
    code, lines = output_of(command)
    for line in lines:
        if found := RUNNING.match(line):
            binary = found[1]
            begun += 1
        elif line.startswith("   Doc-tests "):
            binary = ""
            begun += 1
        elif RUST_RESULT.match(line):
            results += 1
        elif found := RUST_TEST.match(line):
            test, outcome, more = found.groups()
            passed += outcome == "ok"
            if outcome == "FAILED":
                failed.append((binary, test))
            elif outcome in ("ignored", "skipped"):
                skips.append(f"{test}{more}")
        elif found := SKIPPED.match(line):
            skips.append(found[1])
    folders = package_folders() if failed else {}
    again = []
    for binary, test in failed:
        target = Path(binary).name.rpartition("-")[0]
        if target in folders:
            # The crash programme names its tests suite::test, and selects by the second part.
            own = test.startswith(f"{target}::") and test.count("::") == 1
            arguments = [test.partition("::")[2]] if own else ["--exact", test]
            path = str((ROOT / binary).resolve())
            again.append((f"{target} {test}", [path, *arguments], folders[target]))
    return {
        "passed": passed,
        "skipped": len(skips),
        "skips": skips,
        "failed": [f"{Path(binary).name.rpartition('-')[0]} {test}" for binary, test in failed],
        "ended": begun == results and (code == 0 or bool(failed)),
        "again": again,
    }


def package_folders() -> dict[str, str]:
    """The folder of the package of each target; cargo runs its tests there."""
    command = ["cargo", "metadata", "--no-deps", "--format-version=1", "--offline"]
    packages = json.loads(subprocess.check_output(command, cwd=ROOT))["packages"]
    return {
        target["name"].replace("-", "_"): str(Path(package["manifest_path"]).parent)
        for package in packages
        for target in package["targets"]
    }


def cargo_environment() -> dict[str, str]:
    """The variables that cargo gives to tests; those that are set win."""
    config = tomllib.loads((ROOT / ".cargo" / "config.toml").read_text())
    return {**config["env"], **os.environ}


def run(name: str, kind: str, command: list[str]) -> int:
    VERDICTS.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    verdict = {"pytest": run_pytest, "cargo": run_cargo}[kind](name, command)
    again = verdict.pop("again")
    verdict["unstable"] = []
    if os.environ.get("TOPICS_RETRY") == "1" and len(again) <= MOST_RETRIES:
        for test, alone, folder in again:
            print(f"\nsuite {name}: once more, alone: {test}", flush=True)
            # A test that hangs is ended by `timeout`, as its suite is.
            limited = ["timeout", "1200", *alone]
            env = cargo_environment()
            if subprocess.run(limited, cwd=folder, env=env, check=False).returncode == 0:
                verdict["unstable"].append(test)
    verdict["failed"] = [test for test in verdict["failed"] if test not in verdict["unstable"]]
    verdict["seconds"] = time.monotonic() - started
    verdict["at"] = time.time()
    (VERDICTS / f"{name}.json").write_text(json.dumps(verdict))
    print(f"suite {name}: {verdict['seconds']:.1f} s", flush=True)
    return 0 if verdict["ended"] and not verdict["failed"] else 1


def summary() -> int:
    verdicts = {path.stem: json.loads(path.read_text()) for path in VERDICTS.glob("*.json")}
    verdicts = dict(sorted(verdicts.items(), key=lambda item: item[1]["at"]))
    print(f"\n{'suite':<14}{'passed':>8}{'failed':>8}{'unstable':>10}{'skipped':>9}{'seconds':>9}")
    for name, v in verdicts.items():
        counts = f"{v['passed']:>8}{len(v['failed']):>8}{len(v['unstable']):>10}{v['skipped']:>9}"
        print(f"{name:<14}{counts}{v['seconds']:>9.0f}{'' if v['ended'] else '  DID NOT END'}")
    listed = {
        kind: [f"{kind[:-1]}: {name}: {test}" for name, v in verdicts.items() for test in v[field]]
        for kind, field in (("skipped:", "skips"), ("failed:", "failed"), ("unstable:", "unstable"))
    }
    for lines in listed.values():
        for line in lines:
            print(line)
    unfinished = [name for name, v in verdicts.items() if not v["ended"]]
    too_many = len(listed["unstable:"]) > MOST_UNSTABLE
    if too_many:
        print(
            f"more than {MOST_UNSTABLE} tests are unstable: find out what their verdict depends on"
        )
    return 1 if listed["failed:"] or unfinished or too_many or not verdicts else 0


if __name__ == "__main__":
    if sys.argv[1:] == ["--summary"]:
        sys.exit(summary())
    if len(sys.argv) < 4 or sys.argv[2] not in ("pytest", "cargo"):
        sys.exit(__doc__)
    sys.exit(run(sys.argv[1], sys.argv[2], sys.argv[3:]))
