"""A payload comes back byte for byte from a file, and from a socket."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import topics_engine as te
from support.payloads import PAYLOADS
from support.server import Server
from support.terminal import Run
from support.websocket import Socket


def opened(cli: Run) -> Any:
    option, where = cli.where  # type: ignore[attr-defined]
    return te.connect(where) if option == "--url" else te.open(where)


@pytest.mark.parametrize("kind", PAYLOADS)
@pytest.mark.parametrize("ending", ["arrow", "parquet", "csv", "jsonl"])
def test_files(cli: Run, topic: str, tmp_path: Path, ending: str, kind: str) -> None:
    text = PAYLOADS[kind]
    with opened(cli) as db:
        db.topic(topic).append_arrow(pa.table({"data": [text, "1"]}))
    file, copy = str(tmp_path / f"records.{ending}"), f"{topic}-copy"
    assert cli("export", topic, file)[0] == 0
    assert cli("import", copy, file)[0] == 0
    if ending in ("csv", "jsonl"):
        # A line is a record there: line ends, which are only between tokens, are spaces.
        text = text.replace("\n", " ").replace("\r", " ")
    with opened(cli) as db:
        assert [r.raw for r in db.topic(copy).tail(2)] == [text.encode(), b"1"]


@pytest.mark.parametrize("kind", PAYLOADS)
def test_messages_of_a_socket(hot_server: Server, topic: str, kind: str) -> None:
    text = PAYLOADS[kind]
    with te.connect(hot_server.url) as db:
        db.topic(topic).append_arrow(pa.table({"data": [text]}))
    with closing(Socket(hot_server.port)) as socket:
        socket.ask("subscribe", "subscribed", topic=topic, from_seq=0)
        message = socket.connection.recv()
    assert isinstance(message, str)
    assert f'"data":{text}' in message
