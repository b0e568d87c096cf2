"""Docstrings: every public name has one, with its arguments; the examples in them run."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import inspect
import re
import textwrap
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.trace import get_tracer

import topics_engine as te
import topics_engine.asgi
import topics_engine.errors
import topics_engine.testing
from support.server import Server
from support.waiting import until

MODULES = (te, te.aio, te.errors, te.otel, topics_engine.asgi, topics_engine.testing)
SOURCES = Path(te.__file__).parent

# Options of `**` are described by their TypedDict.
OPTIONS = {"options", "asked", "given", "settings"}


def members(value: Any) -> Iterator[tuple[str, Any]]:
    """The public methods and properties of a class, those of its bases in the package too."""
    for base in value.__mro__:
        if base.__module__.startswith("topics_engine"):
            for name, member in vars(base).items():
                if not name.startswith("_") and (
                    inspect.isfunction(member) or isinstance(member, property | classmethod)
                ):
                    yield f"{value.__module__}.{value.__name__}.{name}", member


def public() -> dict[str, Any]:
    """Every public class, function, method and property by name."""
    found: dict[str, Any] = {}
    for module in MODULES:
        for name in getattr(module, "__all__", ["Server"]):
            value = getattr(module, name)
            if inspect.isclass(value):
                found[f"{value.__module__}.{name}"] = value
                for path, member in members(value):
                    found.setdefault(path, member)
            elif inspect.isfunction(value):
                found[f"{value.__module__}.{name}"] = value
    return found


PUBLIC = public()


def functions() -> dict[str, Any]:
    """Those of them that are called."""
    unwrapped = {
        name: getattr(value, "__func__", value)
        for name, value in PUBLIC.items()
        if not inspect.isclass(value) and not isinstance(value, property)
    }
    # A docstring may leave the arguments to that of the sync method.
    return {n: f for n, f in unwrapped.items() if "; see `topics_engine." not in (f.__doc__ or "")}


def test_every_public_name_has_a_docstring() -> None:
    assert len(PUBLIC) > 200
    assert [name for name, value in PUBLIC.items() if not (value.__doc__ or "").strip()] == []


def test_every_argument_is_described() -> None:
    """Names and order in `Args:` are those of the signature."""
    wrong = []
    for name, value in functions().items():
        parameters = [
            p.name
            for p in inspect.signature(value).parameters.values()
            if p.name not in ("self", "cls")
        ]
        text = inspect.cleandoc(value.__doc__ or "")
        section = re.search(r"^Args:\n((?:    .*\n|\n)*)", text + "\n", re.MULTILINE)
        described = re.findall(r"^    \*{0,2}(\w+): ", section[1] if section else "", re.MULTILINE)
        if [p for p in parameters if p not in described] or not set(described) <= set(parameters):
            wrong.append(f"{name}: {parameters} described as {described}")
    assert not wrong, "\n".join(wrong)


def test_every_result_that_is_no_handle_is_described() -> None:
    """In a `Returns:` section, or by a first line that says what it is."""
    wrong = []
    for name, value in functions().items():
        result = str(inspect.signature(value).return_annotation)
        first = inspect.cleandoc(value.__doc__ or "").partition("\n\n")[0]
        says = re.search(r"^Returns:", inspect.cleandoc(value.__doc__ or ""), re.MULTILINE)
        plain = re.search(r"[Rr]eturns? |^The |^A |^Every |^Whether |[Ii]terates ", first)
        if result in ("bool", "int", "float") and not (says or plain):
            wrong.append(f"{name} -> {result}")
    assert not wrong, "\n".join(wrong)


FROZEN = re.compile(r"frozen|TypedDict|dataclass")


def fields(path: Path) -> Iterator[tuple[str, bool]]:
    """The public fields of the value classes of a module, and whether a text stands below each."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.ClassDef):
            continue
        head = " ".join(ast.unparse(part) for part in (*node.decorator_list, *node.bases))
        if not FROZEN.search(head) or node.name.startswith("_"):
            continue
        for statement, after in zip(node.body, [*node.body[1:], None], strict=True):
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                name = statement.target.id
                is_text = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
                if not name.startswith("_"):
                    yield f"{path.stem}.{node.name}.{name}", is_text


def test_every_field_of_a_value_is_described() -> None:
    found = {}
    for name in ("values", "queue", "consumer", "transaction"):
        found |= dict(fields(SOURCES / "client" / f"{name}.py"))
    assert len(found) > 80
    assert [name for name, described in found.items() if not described] == []


def examples() -> list[tuple[str, str]]:
    """The examples of the docstrings, of the package and of its public names."""
    found = {}
    for name, value in {**PUBLIC, **{m.__name__: m for m in MODULES}}.items():
        text = inspect.cleandoc(value.__doc__ or "")
        fences = re.findall(r"^( *)```python\n(.*?)^\1```", text, re.MULTILINE | re.DOTALL)
        for number, (_, body) in enumerate(fences):
            found.setdefault(textwrap.dedent(body), f"{name}:{number}")
    return [(name, body) for body, name in found.items()]


EXAMPLES = examples()


def test_there_are_examples() -> None:
    described = {name.rpartition(":")[0].rpartition(".")[2] for name, _ in EXAMPLES}
    assert described >= {
        *("open", "connect", "append", "append_batch", "append_arrow", "read", "tail", "consumer"),
        *("watch", "queue", "claim", "work", "Job", "nack", "redrive", "remove", "promote", "peek"),
        *("router", "transaction", "scan", "split", "create", "delete", "seek", "NewRecord"),
        *("Record", "batches", "ConsumerBatch", "Server", "create_app", "running"),
    }


class Done(Exception):
    """Ends an example that follows a topic."""


def handler() -> Callable[[Any], None]:
    """What examples call with what they got; the second call ends the example."""
    calls: list[Any] = []

    def handle(item: Any) -> None:
        calls.append(item)
        if len(calls) == 2:
            raise Done

    return handle


def names(db: te.Database, folder: Path) -> dict[str, Any]:
    """What the examples take as there."""
    import pyarrow

    te.open("./topics-data").close()
    orders = db.topic("orders")
    orders.append([{"id": n} for n in range(10)], tag="eu:7")
    jobs = db.queue("jobs")
    jobs.append([{"to": f"{n}@example.org"} for n in range(4)])
    failed = db.queue("failing", max_deliveries=1, dead_letter="jobs.dead", retry_backoff=0)
    failed.append(1)
    (dead,) = failed.claim("w")
    dead.nack()
    until(lambda: "jobs.dead" in db)
    (job,) = jobs.claim("worker-0")

    return {
        "te": te,
        "Server": topics_engine.testing.Server,
        "create_app": topics_engine.asgi.create_app,
        "asynccontextmanager": contextlib.asynccontextmanager,
        "Starlette": lambda **_: None,
        "Mount": lambda *_: None,
        "pyarrow": pyarrow,
        "db": db,
        "orders": orders,
        "events": db.topic("events"),
        "jobs": jobs,
        "job": job,
        "item": orders.tail(1)[0],
        "billing": orders.consumer("billing"),
        "rows": [1, 2],
        "tmp_path": folder,
        "work": lambda _: None,
        "charge": lambda _: None,
        "record": orders.tail(1)[0],
        "tracer": get_tracer("test"),
        "handle": handler(),
    }


def backed_up(folder: Path) -> str:
    """The URL of a prefix with the backup of a directory that was closed."""
    url = (folder / "prefix").as_uri()
    with te.open(folder / "backed-up", remote_url=url, remote_interval_ms=10) as db:
        db.topic("orders").append(1)
        until(lambda: db.metrics()["remote_last_success_timestamp_seconds"] > 0, 60)
    return url


@pytest.mark.parametrize(("name", "example"), EXAMPLES, ids=[name for name, _ in EXAMPLES])
def test_the_examples_run(
    name: str, example: str, tmp_path: Path, hot_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    program = example.replace("http://127.0.0.1:4000", hot_server.url)
    program = program.replace("wait=5", "wait=0.01")
    if "s3://backups/orders" in program:
        program = program.replace("s3://backups/orders", backed_up(tmp_path))
    code = compile(program, name, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    with te.open(tmp_path / "examples") as db, contextlib.suppress(Done):
        try:
            found = eval(code, names(db, tmp_path))
            if inspect.isawaitable(found):
                asyncio.run(as_coroutine(found))
        finally:
            te.otel.uninstrument()


async def as_coroutine(found: Awaitable[Any]) -> None:
    await found
