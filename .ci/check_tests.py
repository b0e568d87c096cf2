"""Refuses tests whose verdict depends on more than the tree, as far as a program can see it.

Python, below tests/python and spark/tests:
  sleep    `time.sleep` or `asyncio.sleep` outside of a `while`, which looks at a condition again: a
           test waits for a condition (`support.waiting.until`)
  clock    an assertion about a time that was measured, except the deadline of a `while`:
           `support.gate.figure` prints it, and has a limit where the gate explores
  random   a generator without a fixed seed: `support.gate.run_seed` gives one
  seed     Hypothesis with a seed or a deadline of its own: the profile of conftest.py has them
Rust, in tests:
  clock    an assertion about `elapsed()`
  random   a seed from `RandomState`

A line that is right, a client that is meant to be slow for instance, ends with a comment that gives
the reason: `# sleep: a slow reader`, `// random: ...`. Tests marked `explore` may do all of it.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PYTHON = ("tests/python", "spark/tests")
RUST = ("tests", "crates")

CLOCKS = {
    "monotonic",
    "monotonic_ns",
    "perf_counter",
    "perf_counter_ns",
    "process_time",
    "time",
    "thread_time",
}
UNSEEDED = {
    "random",
    "randrange",
    "randint",
    "choice",
    "choices",
    "shuffle",
    "sample",
    "uniform",
    "getrandbits",
}


def called(node: ast.AST) -> tuple[str, str]:
    """The module and the name of a call: ("time", "sleep")."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        owner = node.func.value
        return (owner.id if isinstance(owner, ast.Name) else "", node.func.attr)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return ("", node.func.id)
    return ("", "")


def reads_clock(node: ast.AST, measured: set[str]) -> bool:
    """Whether an expression contains a time that was measured."""
    return any(
        (called(n)[0] == "time" and called(n)[1] in CLOCKS)
        or (isinstance(n, ast.Name) and n.id in measured)
        for n in ast.walk(node)
    )


def marked(nodes: list[ast.expr]) -> bool:
    return any("mark.explore" in ast.unparse(node) for node in nodes)


class Rules(ast.NodeVisitor):
    """The findings of one file: the line and the rule."""

    def __init__(self, tree: ast.Module) -> None:
        self.found: list[tuple[int, str]] = []
        self._measured: set[str] = set()
        self._in_while = False
        values = [
            node.value
            for node in tree.body
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark"
        ]
        if not marked(values):
            self.visit(tree)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        if marked(node.decorator_list):
            return
        outer = self._measured, self._in_while
        self._measured, self._in_while = set(self._measured), False
        # A deadline of a loop is no measured time: only differences are.
        for inner in ast.walk(node):
            if isinstance(inner, ast.Assign) and any(
                isinstance(part, ast.BinOp)
                and isinstance(part.op, ast.Sub)
                and reads_clock(part.left, set())
                for part in ast.walk(inner.value)
            ):
                self._measured |= {t.id for t in inner.targets if isinstance(t, ast.Name)}
        for decorator in node.decorator_list:
            if isinstance(decorator, ast.Call):
                self._settings(decorator)
        self.generic_visit(node)
        self._measured, self._in_while = outer

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self.visit_FunctionDef(node)

    def visit_While(self, node: ast.While) -> None:
        outer, self._in_while = self._in_while, True
        self.generic_visit(node)
        self._in_while = outer

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        if not marked(node.decorator_list):
            self.generic_visit(node)

    def visit_Assert(self, node: ast.Assert) -> None:
        compares = [n for n in ast.walk(node.test) if isinstance(n, ast.Compare)]
        if not self._in_while and any(reads_clock(n, self._measured) for n in compares):
            self.found.append((node.lineno, "clock"))
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        owner, name = called(node)
        if (owner, name) in (("time", "sleep"), ("asyncio", "sleep")):
            # sleep(0) lets others run.
            argument = node.args[0] if node.args else None
            lets_run = isinstance(argument, ast.Constant) and argument.value == 0
            if not lets_run and not self._in_while:
                self.found.append((node.lineno, "sleep"))
        if owner == "random" and (
            name in UNSEEDED
            or name == "SystemRandom"
            or (name in ("Random", "seed") and not node.args)
        ):
            self.found.append((node.lineno, "random"))
        self.generic_visit(node)

    def _settings(self, node: ast.Call) -> None:
        _, name = called(node)
        if name == "seed" or (
            name == "settings" and any(k.arg in ("deadline", "derandomize") for k in node.keywords)
        ):
            self.found.append((node.lineno, "seed"))


RUST_RULES = (
    ("clock", re.compile(r"\bassert(?:_eq|_ne)?!.*\belapsed\(\)(?! < LONG)")),
    ("random", re.compile(r"\bRandomState::new\(\)\.hash_one|\bfrom_entropy\(\)")),
)


def python_findings(path: Path) -> Iterator[tuple[int, str]]:
    text = path.read_text()
    lines = text.splitlines()
    for line, rule in Rules(ast.parse(text)).found:
        if f"# {rule}: " not in lines[line - 1]:
            yield line, rule


def rust_findings(path: Path) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(path.read_text().splitlines(), 1):
        for rule, pattern in RUST_RULES:
            if pattern.search(line) and f"// {rule}: " not in line:
                yield number, rule


def main() -> int:
    problems = []
    for top in PYTHON:
        for path in sorted((ROOT / top).rglob("*.py")):
            problems += [(path, line, rule) for line, rule in python_findings(path)]
    for top in RUST:
        for path in sorted((ROOT / top).rglob("*.rs")):
            if top == "tests" or "test" in str(path.relative_to(ROOT / "crates")):
                problems += [(path, line, rule) for line, rule in rust_findings(path)]
    for path, line, rule in problems:
        print(f"{path.relative_to(ROOT)}:{line}: {rule}")
    if problems:
        print(f"{len(problems)} lines; what each rule asks for: .ci/check_tests.py")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
