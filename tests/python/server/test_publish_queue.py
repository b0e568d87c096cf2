"""Publishes of a WebSocket that wait behind one of them: 1 MiB, in their order, none lost."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.holding import QUIET, Holding
from support.http_client import Http
from support.marks import HTTP1
from support.sync_filter import NUMBERS
from support.websocket import Socket

from .test_kill import read_all

pytestmark = pytest.mark.skipif(
    platform.machine() not in NUMBERS, reason="no numbers of its system calls"
)

BOUND = 1 << 20
PART = BOUND // 8


@pytest.fixture
def holding(tmp_path: Path, protocol: str) -> Iterator[Holding]:
    env = QUIET | {"TOPICS_HOT_PROTOCOL": str(int(protocol == "hot"))}
    with Holding(tmp_path / "data", env=env) as live:
        api = Http(live.port)
        assert api("PUT", "/v0/topics/safe", {"durability": "fsync"}).status == 201
        assert api("POST", "/v0/sync").status == 200
        api.close()
        yield live


def message(name: str, size: int = 0, **fields: Any) -> str:
    """A publish of one record, its name, in so many bytes."""
    one = {"op": "publish", "request_id": name, "topic": "safe", "records": [{"data": name}]}
    text = json.dumps(one | fields)
    return text[:-1] + " " * (size - len(text)) + "}"


def waits(holding: Holding, socket: Socket) -> None:
    """One publish is being made durable, and that goes on: the others get into line."""
    holding.hold()
    socket.send(message("first", disable_backpressure=True))
    holding.until_held()
    assert socket.ask("ping", "pong"), "nobody else is held up"


def acked(socket: Socket, names: list[str]) -> list[int]:
    """The seqs of these publishes, which are answered in their order."""
    answers = [socket.take() for _ in names]
    assert [(a["op"], a["request_id"]) for a in answers] == [("ack", name) for name in names]
    return [a["last_seq"] for a in answers]


def refused(socket: Socket, name: str) -> None:
    """What is told before any other answer comes."""
    answer = socket.take()
    assert (answer["op"], answer["request_id"], answer["code"]) == ("error", name, "throttled")
    assert answer["detail"] == {
        "limit": "waiting_publishes", "max": BOUND, "retry_after_ms": 100
    }  # fmt: skip


@HTTP1
def test_what_waits_is_bounded_and_the_socket_goes_on(holding: Holding) -> None:
    socket = Socket(holding.port)
    waits(holding, socket)
    names = [f"part {n}" for n in range(7)]
    for name in names:
        socket.send(message(name, PART))
    # One byte more than there is room for, and then as much as there is.
    socket.send(message("too long", PART + 1))
    refused(socket, "too long")
    socket.send(message("fits", PART))
    socket.send(message("too many"))
    refused(socket, "too many")
    assert socket.ask("ping", "pong"), "it is read from"
    holding.release()
    names = ["first", *names, "fits"]
    assert acked(socket, names) == list(range(1, 10)), "I2"
    # With room again the same are taken, one after the other and one in place of all.
    socket.send(message("too many"))
    assert acked(socket, ["too many"]) == [10]
    socket.send(message("longer", BOUND + 1, disable_backpressure=True))
    assert acked(socket, ["longer"]) == [11]
    socket.close()
    # I1: what was acked is there after a crash, in the order of the acks.
    holding.kill()
    holding.start()
    api = Http(holding.port)
    assert [data for _, data in read_all(api, "safe", 0)] == [*names, "too many", "longer"]
    api.close()
    assert holding.stop() == 0


@HTTP1
def test_who_leaves_a_line_has_published_what_was_taken_in_order(holding: Holding) -> None:
    socket = Socket(holding.port)
    waits(holding, socket)
    names = [str(n) for n in range(100)]
    for name in names:
        socket.send(message(name))
    assert socket.ask("ping", "pong"), "all of them have been taken"
    socket.close()
    other = Socket(holding.port)
    other.send(message("other"))
    holding.release()
    assert other.take("ack")["request_id"] == "other"
    other.close()
    assert holding.stop() == 0
    holding.start()
    api = Http(holding.port)
    found = [data for _, data in read_all(api, "safe", 0)]
    # Nobody was told; whatever there is, is a beginning of what was sent.
    mine = [data for data in found if data != "other"]
    assert mine == ["first", *names][: len(mine)]
    api.close()
    assert holding.stop() == 0
