"""What imports what inside the package: folders form layers, without a cycle."""

from __future__ import annotations

import ast
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

import topics_engine

PACKAGE = Path(topics_engine.__file__).parent

# A program that only uses the client does not load what runs a server.
CLIENT_SIDE = {"client", "remote", "aio", "otel", "asgi"}
SERVER_SIDE = {"server", "cli"}


# What a program pays for with `import topics_engine` and an open database is what they use. These
# modules are slow to import, or belong to clients and servers.
UNUSED = """
    argparse ast asyncio base64 concurrent copy dataclasses difflib dis email fnmatch greenlet html
    http httptools importlib.metadata inspect logging multiprocessing opentelemetry pathlib pickle
    pyarrow random selectors socket ssl string subprocess tempfile tokenize tomllib traceback urllib
    uuid uvicorn topics_engine.aio topics_engine.asgi topics_engine.cli topics_engine.otel
    topics_engine.remote topics_engine.server topics_engine.testing
"""


def imports(module: tuple[str, ...], source: str) -> Iterator[tuple[str, ...]]:
    """The modules of the package that a module imports when it runs, in functions too.

    `module` is its path below the package; `__init__` is the last part of a folder's own module.
    Imports for type checkers alone are left out: they do not run.
    """
    tree = ast.parse(source)
    typing_only = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for statement in node.body
        for inner in ast.walk(statement)
    }
    for node in ast.walk(tree):
        if id(node) in typing_only:
            continue
        if isinstance(node, ast.Import):
            found = [tuple(alias.name.split(".")) for alias in node.names]
            yield from (name[1:] for name in found if name[0] == "topics_engine")
        elif isinstance(node, ast.ImportFrom):
            name = tuple(node.module.split(".")) if node.module else ()
            if node.level:
                base = module[: -node.level]
            elif name[:1] == ("topics_engine",):
                base, name = (), name[1:]
            else:
                continue
            # `from . import a`: a is a module.
            yield from [(*base, *name)] if name else [(*base, a.name) for a in node.names]


def unit(module: tuple[str, ...]) -> str:
    """The folder that a module lies in, or the module itself at the top of the package."""
    return module[0]


def graph(sources: Mapping[tuple[str, ...], str]) -> dict[str, set[str]]:
    """Which folder imports which others. The package's own module, which has the public names, may
    import all of them and is left out.
    """
    found: dict[str, set[str]] = {}
    for module, source in sources.items():
        if module == ("__init__",):
            continue
        targets = {unit(target) for target in imports(module, source) if target}
        found.setdefault(unit(module), set()).update(targets - {unit(module)})
    return found


def cycle(of: Mapping[str, set[str]]) -> list[str] | None:
    """The names on a cycle, the first one again at its end; `None` where there is none."""
    done: set[str] = set()

    def walk(name: str, path: list[str]) -> list[str] | None:
        if name in path:
            return [*path[path.index(name) :], name]
        if name in done:
            return None
        for target in sorted(of.get(name, ())):
            if found := walk(target, [*path, name]):
                return found
        done.add(name)
        return None

    return next((found for name in sorted(of) if (found := walk(name, []))), None)


def upward(of: Mapping[str, set[str]]) -> list[str]:
    """Imports of the server's side by the client's."""
    return [
        f"{name} imports {target}"
        for name in sorted(CLIENT_SIDE)
        for target in sorted(of.get(name, set()) & SERVER_SIDE)
    ]


@pytest.fixture(scope="module")
def package() -> dict[str, set[str]]:
    paths = [path for path in PACKAGE.rglob("*.py") if "__pycache__" not in path.parts]
    return graph(
        {path.relative_to(PACKAGE).with_suffix("").parts: path.read_text() for path in paths}
    )


def test_no_cycle_among_folders(package: dict[str, set[str]]) -> None:
    assert {"asgi", "server", "cli", "remote"} <= package.keys()
    assert {"asgi", "server"} <= package["cli"], "the check sees imports of functions"
    assert cycle(package) is None


def test_the_client_side_imports_no_server(package: dict[str, set[str]]) -> None:
    assert package.keys() >= CLIENT_SIDE | SERVER_SIDE
    assert upward(package) == []


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("from ..server.limits import Limits", {"server"}),
        ("from .. import server", {"server"}),
        ("from . import queue", set()),
        ("import topics_engine.cli.main", {"cli"}),
        ("from topics_engine.server import serve", {"server"}),
        ("def f():\n    from ..cli.main import main", {"cli"}),
        ("if TYPE_CHECKING:\n    from ..server import serve", set()),
        ("import asyncio", set()),
    ],
)
def test_the_check_finds_an_import(source: str, found: set[str]) -> None:
    of = graph({("client", "topic"): textwrap.dedent(source), ("client", "__init__"): ""})
    assert of["client"] == found
    assert bool(upward(of)) is bool(found)


def test_the_check_finds_a_cycle() -> None:
    assert cycle({"a": {"b"}, "b": {"c"}, "c": {"a"}}) == ["a", "b", "c", "a"]
    assert cycle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) is None


def loaded(program: str, cwd: Path) -> set[str]:
    """The modules that a program has loaded at its end."""
    program += "\nimport sys\nprint(*sys.modules)"
    # -I and -S: no modules of the environment's own start.
    path = f"import sys; sys.path[:0] = {[str(PACKAGE.parent)]}\n"
    command = [sys.executable, "-I", "-S", "-c", path + program]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=cwd, timeout=300)
    return set(done.stdout.split())


def test_a_program_loads_only_what_it_uses(tmp_path: Path) -> None:
    unused = set(UNUSED.split())
    assert loaded("import topics_engine", tmp_path) & unused == set()
    program = """
        import topics_engine as te
        with te.open("data") as db:
            jobs = db.queue("jobs")
            jobs.append([{"id": 1}], delay="0s")
            for job in jobs.claim("w"):
                with job: job.data
            list(jobs.read(after=0))
    """
    assert loaded(textwrap.dedent(program), tmp_path) & unused == set()
    assert "asyncio" in loaded("import topics_engine.aio", tmp_path), "the check sees imports"
