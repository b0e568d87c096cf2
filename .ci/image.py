#!/usr/bin/env python3
"""Builds and tries what the Dockerfile describes, on a machine without a container engine.

    .ci/image.py [ROOTS]    as root; needs debootstrap and Rust; replaces ROOTS (target/image)

Each stage gets a clean Debian of its image's release. What the base image has beside it comes from
Debian (a C compiler, Python) and from this machine (Rust): these versions are not the image's. Each
COPY and RUN is executed in order. Then the last stage serves as its USER, ENTRYPOINT and CMD say,
until its HEALTHCHECK passes, and must end with 0 after its STOPSIGNAL. A VOLUME is a folder.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# What the base images have beside a Debian.
PACKAGES = {
    "rust": "ca-certificates,gcc,libc6-dev",
    "python": "ca-certificates,python3,python3-venv",
}
# How this machine reaches its package registries.
NETWORK = ("/etc/resolv.conf", "/etc/hosts", "/etc/pip.conf", "/etc/ssl/certs/ca-certificates.crt")
PASSED = re.compile(r"^(PIP|CARGO|SSL|REQUESTS)_|_proxy$", re.IGNORECASE)
NOT_PASSED = re.compile(r"^CARGO_(TARGET_DIR|HOME|MAKEFLAGS)$|^PIP_REQUIRE_VIRTUALENV$")
HEALTHY_SECONDS = 60


@dataclass
class Stage:
    """A stage of the Dockerfile, and the instructions that the container's start depends on."""

    image: str
    root: Path
    workdir: str = "/"
    user: str = ""
    path: str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    settings: dict[str, list[str]] = field(default_factory=dict)

    def chroot(self, command: list[str], user: str = "") -> list[str]:
        """The command in this root; `user` is `uid:gid`."""
        env = {k: v for k, v in os.environ.items() if PASSED.search(k) and not NOT_PASSED.search(k)}
        env |= {"PATH": self.path, "HOME": "/root", "LC_ALL": "C.UTF-8"}
        inside = ["sh", "-c", f'cd {shlex.quote(self.workdir)} && exec "$@"', "sh", *command]
        who = [f"--userspec={user}"] if user else []
        return [
            "env",
            "-i",
            *(f"{k}={v}" for k, v in env.items()),
            "chroot",
            *who,
            str(self.root),
            *inside,
        ]


def instructions(text: str) -> list[tuple[str, str]]:
    """The instructions of a Dockerfile without its comments; continued lines are joined."""
    lines = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    joined = re.sub(r"\\\n\s*", "", lines)
    return [
        (name.upper(), rest.strip())
        for name, _, rest in (
            line.strip().partition(" ") for line in joined.splitlines() if line.strip()
        )
    ]


def run(command: list[str]) -> None:
    if subprocess.run(command, check=False).returncode != 0:
        sys.exit(f"failed: {shlex.join(command[-3:])}")


def debian(stage: Stage) -> None:
    """Makes the root of a stage: a Debian of its release, and what the image has beside it."""
    kind, _, tag = stage.image.partition(":")
    if kind not in PACKAGES:
        sys.exit(
            f"the image {stage.image} is not known here: expected one of {', '.join(PACKAGES)}"
        )
    run(
        [
            "debootstrap",
            "--variant=minbase",
            f"--include={PACKAGES[kind]}",
            tag.rpartition("-")[2],
            str(stage.root),
        ]
    )
    run(["mount", "-t", "proc", "proc", str(stage.root / "proc")])
    for name in NETWORK:
        if Path(name).exists():
            target = stage.root / name[1:]
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(name, target)
    # pip trusts a folder of this machine's, if one is set.
    for name in os.environ.get("PIP_FIND_LINKS", "").split():
        if Path(name).is_dir():
            shutil.copytree(name, stage.root / name[1:])
    if kind == "rust":
        sysroot = subprocess.run(
            ["rustc", "--print", "sysroot"], check=True, capture_output=True, text=True
        )
        shutil.copytree(
            sysroot.stdout.strip(),
            stage.root / "usr/local/rust",
            symlinks=True,
            ignore=shutil.ignore_patterns("doc", "share"),
        )
        stage.path = "/usr/local/rust/bin:" + stage.path
    else:
        # Debian's own Python lets pip install into a virtual environment only.
        run(stage.chroot(["python3", "-m", "venv", "/usr/local"]))


def context(target: Path) -> None:
    """COPY . .: what git knows of the tree, as a clean clone has it."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).exists():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)


def copy(stage: Stage, rest: str, stages: dict[str, Stage]) -> None:
    source, target = [a for a in rest.split() if not a.startswith("--")]
    to = stage.root / os.path.join(stage.workdir, target)[1:]
    to.mkdir(parents=True, exist_ok=True)
    if found := re.search(r"--from=(\S+)", rest):
        shutil.copytree(stages[found[1]].root / source[1:], to, dirs_exist_ok=True)
    elif source == ".":
        context(to)
    else:
        sys.exit(f"COPY {rest}: expected `.` or --from")


def build(roots: Path) -> Stage:
    """Executes the Dockerfile; returns its last stage."""
    stages: dict[str, Stage] = {}
    stage: Stage | None = None
    for name, rest in instructions((ROOT / "Dockerfile").read_text()):
        print(f"{name} {rest}", flush=True)
        if name == "FROM":
            image, _, alias = rest.partition(" AS ")
            stage = Stage(image, roots / (alias or "last"))
            stages[alias] = stage
            debian(stage)
            continue
        if stage is None:
            sys.exit("the Dockerfile does not begin with FROM")
        if name == "RUN":
            run(stage.chroot(["sh", "-c", rest]))
        elif name == "COPY":
            copy(stage, rest, stages)
        elif name == "WORKDIR":
            stage.workdir = rest
            (stage.root / rest[1:]).mkdir(parents=True, exist_ok=True)
        elif name == "USER":
            stage.user = rest
        elif name in ("ENTRYPOINT", "CMD", "STOPSIGNAL", "HEALTHCHECK", "EXPOSE", "VOLUME"):
            exec_form = rest[rest.index("[") :] if "[" in rest else json.dumps([rest])
            stage.settings[name] = json.loads(exec_form)
        else:
            sys.exit(f"{name}: not known here")
    assert stage is not None
    return stage


def serve(stage: Stage) -> None:
    """Starts what the container would, waits until it is healthy, and stops it."""
    # It listens on every address, which it does not do without keys.
    key = f"TOPICS_API_KEYS={secrets.token_hex(16)}:admin"
    command = ["env", key, *stage.settings["ENTRYPOINT"], *stage.settings["CMD"]]
    server = subprocess.Popen(stage.chroot(command, stage.user))
    try:
        health = stage.chroot(stage.settings["HEALTHCHECK"], stage.user)
        until = time.monotonic() + HEALTHY_SECONDS
        while subprocess.run(health, check=False, stderr=subprocess.DEVNULL).returncode != 0:
            if server.poll() is not None or time.monotonic() > until:
                sys.exit(f"not healthy within {HEALTHY_SECONDS} s; exit code: {server.poll()}")
            time.sleep(0.5)
        print("healthy", flush=True)
        server.send_signal(signal.Signals[stage.settings["STOPSIGNAL"][0]])
        if code := server.wait(timeout=60):
            sys.exit(f"the server ends with {code}")
        print("serves, and ends", flush=True)
    finally:
        server.kill()


def main() -> None:
    if os.geteuid() != 0 or not shutil.which("debootstrap"):
        sys.exit("root and debootstrap are needed: apt-get install debootstrap")
    # What is mounted here is gone with this process.
    if "TOPICS_IMAGE_MOUNTS" not in os.environ:
        os.environ["TOPICS_IMAGE_MOUNTS"] = "own"
        os.execvp("unshare", ["unshare", "--mount", sys.executable, *sys.argv])
    roots = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "target/image").resolve()
    shutil.rmtree(roots, ignore_errors=True)
    roots.mkdir(parents=True)
    serve(build(roots))


if __name__ == "__main__":
    main()
