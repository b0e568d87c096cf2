"""Runs the code of the Spark page unchanged, except for its addresses."""

from __future__ import annotations

import re
from pathlib import Path

import topics_engine as te
from support.server import Server

PAGE = (Path(__file__).parents[2] / "docs" / "spark.md").read_text()
READ, STREAM, EACH = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def test_what_the_page_shows(spark, tmp_path):
    with te.open(tmp_path / "monday") as db:
        db.topic("orders.eu").append([{"id": 7}])
    with Server(tmp_path / "data") as server:
        with te.connect(server.url) as db:
            db.topic("orders").append([{"id": n} for n in range(1002)])
            db.topic("orders.us").append([{"id": 8}, {"id": 9}], tag="us")
        known = {"spark": spark, "url": server.url}
        addresses = {
            "http://10.0.0.7:4000": server.url,
            'token="…"': 'token="s3cret"',
            "/backups/monday": str(tmp_path / "monday"),
            "s3a://…/audit": str(tmp_path / "checkpoint"),
        }

        def run(block):
            for there, here in addresses.items():
                block = block.replace(there, here)
            exec(block, known)

        run(READ)
        assert [row.id for row in known["recent"].orderBy("id").collect()] == [1000, 1001]
        assert known["narrow"].columns == ["seq", "data"]
        assert known["narrow"].count() == 1002
        assert [row.data for row in known["closed"].collect()] == ['{"id":7}']
        run(STREAM)
        known["query"].processAllAvailable()
        known["query"].stop()
        run(EACH)
        for _ in range(2):
            known["each"](spark.createDataFrame([("1",)], "data string"), 1)
        with te.connect(server.url) as db:
            *copied, once = db.topic("audit").read()
            assert [record.data["seq"] for record in copied] == [1, 2]
            assert {record.tag for record in copied} == {"us"}
            assert once.data == 1
