"""The application over a real engine, inside somebody else's."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import topics_engine as te
from support.asgi_driver import Driver, run
from topics_engine import asgi
from topics_engine.asgi.build import DefaultApp

from .pending import DEADLINE, MOST_WAIT_MS


def test_an_engine_of_the_callers_is_served_and_stays_open(tmp_path: Path) -> None:
    with te.open(tmp_path / "data") as db:
        driver = Driver()
        driver.app = asgi.create_app(db)
        driver.lifespan = driver.app.lifespan

        async def go() -> None:
            await driver.ready()
            scope = {"root_path": "/topics", "raw_path": b"/topics/v0/topics/orders"}
            body = b'{"records":[{"data":{"a":1.50}}]}'
            written = await driver.request("POST", "/topics/v0/topics/orders", body, scope=scope)
            assert written.status == 201
            asked = json.dumps({"from_seq": 1, "wait_ms": MOST_WAIT_MS}).encode()
            waiting = asyncio.ensure_future(driver.request("POST", "/v0/topics/orders/diff", asked))
            for _ in range(100):
                await asyncio.sleep(0)
            # A write in process wakes a reader over HTTP.
            await asyncio.to_thread(db.topic("orders").append, [{"b": 2}])
            records = json.loads((await waiting).body)["records"]
            assert [r["data"] for r in records] == [{"b": 2}]
            await driver.lifespan.close(5)

        run(go())
        kept = db.topic("orders").read(after=0)
        assert [bytes(r.raw) for r in kept] == [b'{"a":1.50}', b'{"b":2}']


def test_fifty_writers_in_one_tick_are_each_acked_once(tmp_path: Path) -> None:
    with te.open(tmp_path / "data") as db:
        driver = Driver()
        driver.app = asgi.create_app(db)
        driver.lifespan = driver.app.lifespan

        async def go() -> list[int]:
            await driver.ready()
            for durability in ("disk", "fsync"):
                config = json.dumps({"durability": durability}).encode()
                await driver.request("PUT", f"/v0/topics/{durability}", config)
            writes = [
                driver.request("POST", f"/v0/topics/{t}", b'{"records":[{"data":1}]}')
                for t in ("disk", "fsync") * 50
            ]
            answers = await asyncio.gather(*writes)
            await driver.lifespan.close(5)
            return [json.loads(a.body)["first_seq"] for a in answers]

        seqs = run(go())
        assert sorted(seqs) == sorted([*range(1, 51)] * 2)


def test_app_is_an_attribute_that_reads_nothing_before_its_first_call(tmp_path: Path) -> None:
    """Servers look it up in different ways, and a wrong setting is none of an import's."""
    program = (
        "import os; os.environ['TOPICS_MAX_BODY_BYTES'] = 'many'\n"
        "import topics_engine.asgi as module\n"
        "assert vars(module)['app'] is module.app\n"
        "from topics_engine.asgi import app\n"
        "assert not os.listdir('.')\n"
    )
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True, timeout=DEADLINE)


def test_settings_that_are_wrong_fail_the_startup(
    monkeypatch: pytest.MonkeyPatch, isolated: None
) -> None:
    monkeypatch.setenv("TOPICS_MAX_BODY_BYTES", "many")
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "lifespan.startup"}

    async def send(message: Any) -> None:
        sent.append(message)

    run(DefaultApp()({"type": "lifespan"}, receive, send))
    (failed,) = sent
    assert failed["type"] == "lifespan.startup.failed"
    assert "max_body_bytes" in failed["message"]
