"""`topics serve` as a process: its port, its signals, its refusals."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import topics_engine as te
from support.http_client import Http, connection, once, raw_exchange
from support.marks import HTTP1
from support.server import Server, opened, running
from support.waiting import DEADLINE, until, until_received

from .test_abuse import connected, sockets


def serve(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "topics_engine.cli", "serve", "--port", "0", *arguments],
        env=dict(os.environ, **environment),
        capture_output=True,
        text=True,
        timeout=2 * DEADLINE,
    )


def test_port_zero_is_printed_and_written_into_the_lock_file(own_server: Server) -> None:
    own_server.start()
    assert own_server.port > 0
    assert own_server.url in (own_server.data_dir / ".topics.lock").read_text()
    assert own_server.stop() == 0


def waiting(port: int, topic: str) -> Any:
    """A connection on which the server has read a request that waits."""
    made = connection(port, timeout=DEADLINE)
    body = b'{"from_seq":1,"wait_ms":30000}'
    made.request("POST", f"/v0/topics/{topic}/diff", body, {"Content-Type": "application/json"})
    until_received(made.sock)
    # What was read is handled before a later request.
    assert once(port, "GET", "/healthz").status == 200
    return made


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_waits_and_exits_0(own_server: Server, sig: int) -> None:
    own_server.start()
    assert once(own_server.port, "POST", "/v0/topics/t", {"records": [{"data": 1}]}).status == 201
    waiter = waiting(own_server.port, "t")
    os.kill(own_server.pid, sig)
    assert own_server.wait() == 0
    answer = waiter.getresponse()
    records = json.loads(answer.read())
    assert (answer.status, records["records"]) == (200, [])
    assert records["next_from_seq"] == 1
    waiter.close()
    # A clean close: the next open finds everything, at once.
    own_server.start()
    assert once(own_server.port, "GET", "/v0/topics/t").json["head_seq"] == 1
    assert own_server.stop() == 0


# Sends itself a signal between the line that says where it listens and the event loop.
SIGNALLED_EARLY = """
import os, sys
from topics_engine.cli import main
from topics_engine.server.serve import Server

def run(self, sockets):
    os.kill(os.getpid(), int(sys.argv[1]))
    before(self, sockets=sockets)

before, Server.run = Server.run, run
sys.exit(main(["serve", "--port", "0", "--data-dir", sys.argv[2]]))
"""


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_before_the_event_loop_runs_ends_the_server(tmp_path: Path, sig: int) -> None:
    command = [sys.executable, "-c", SIGNALLED_EARLY, str(int(sig)), str(tmp_path / "data")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=2 * DEADLINE)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("listening on ")


def test_a_second_server_says_who_holds_the_directory(own_server: Server) -> None:
    own_server.start()
    second = serve("--data-dir", str(own_server.data_dir))
    assert second.returncode == 1
    assert str(own_server.pid) in second.stderr
    assert own_server.url in second.stderr
    assert own_server.stop() == 0


def test_a_port_in_use_is_said(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        refused = serve("--data-dir", str(tmp_path / "d"), "--port", port)
    assert refused.returncode == 1
    assert f"cannot listen on 127.0.0.1:{port}" in refused.stderr
    assert not (tmp_path / "d").exists()


def test_a_directory_that_cannot_be_made_is_said_before_anything_listens(tmp_path: Path) -> None:
    refused = serve("--data-dir", str(tmp_path / "none" / "d"))
    assert (refused.returncode, refused.stdout) == (2, "")
    assert f"there is no folder {tmp_path / 'none'}: create it" in refused.stderr
    (tmp_path / "file").write_text("")
    refused = serve("--data-dir", str(tmp_path / "file"))
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "is a file, not a folder" in refused.stderr


def let_go(held: Path) -> bool:
    """Ends the wait of whoever opens a pipe to read it; false: nobody does yet."""
    try:
        os.close(os.open(held, os.O_WRONLY | os.O_NONBLOCK))
    except OSError:
        return False
    return True


def answers(port: int) -> bool:
    try:
        return once(port, "GET", "/healthz").status == 200
    except OSError:
        return False


def test_a_server_that_recovers_says_so_whatever_it_is_asked(own_server: Server) -> None:
    own_server.start()
    assert once(own_server.port, "POST", "/v0/topics/t", {"records": [{"data": 1}]}).status == 201
    own_server.kill()
    # Recovery looks at the newest snapshot first, and waits for somebody to write this one.
    held = own_server.data_dir / "meta" / "snapshot.999999.bin"
    os.mkfifo(held)
    starting = threading.Thread(target=own_server.start, daemon=True)
    starting.start()
    try:
        until(lambda: answers(own_server.port))
        for method, path, body in (
            ("GET", "/readyz", None),
            ("GET", "/v0/ready", None),
            ("GET", "/v0/metrics", None),
            ("GET", "/v0/topics/t", None),
            ("POST", "/v0/topics/t", {"records": [{"data": 2}]}),
            ("POST", "/v0/topics/t/diff", {"from_seq": 0, "wait_ms": 1000}),
        ):
            reply = once(own_server.port, method, path, body)
            assert (reply.status, reply.code) == (503, "not_ready"), path
            assert int(reply.headers["retry-after"]) >= 1
            assert reply.json["error"]["detail"]["replay_progress"] == 0
    finally:
        until(lambda: let_go(held))
        held.unlink()
        starting.join(2 * DEADLINE)
    ready = once(own_server.port, "GET", "/readyz").json
    assert (ready["status"], ready["wal_replay_complete"], ready["topics"]) == ("ready", True, 1)
    api = Http(own_server.port)
    metrics = api("GET", "/v0/metrics", headers={"Accept": "application/json"}).json
    api.close()
    assert (metrics["ready"], metrics["recovery_progress_ratio"]) == (1, 1)
    assert metrics["recovery_frames"] > 0
    assert once(own_server.port, "GET", "/v0/topics/t").json["head_seq"] == 1
    assert own_server.stop() == 0


def test_others_are_not_served_without_keys(tmp_path: Path) -> None:
    refused = serve("--data-dir", str(tmp_path / "d"), "--host", "0.0.0.0")
    assert refused.returncode == 2
    assert "TOPICS_ALLOW_INSECURE_NO_AUTH" in refused.stderr
    keyed = serve("--data-dir", str(tmp_path / "d"), TOPICS_API_KEYS="k:nothing")
    assert keyed.returncode == 2
    assert "TOPICS_API_KEYS" in keyed.stderr
    assert not (tmp_path / "d").exists()


def test_a_damaged_directory_is_exit_4(own_server: Server) -> None:
    own_server.start()
    assert own_server.stop() == 0
    store = own_server.data_dir / "meta" / "STORE"
    store.write_bytes(bytes(b ^ 0xFF for b in store.read_bytes()))
    refused = serve("--data-dir", str(own_server.data_dir))
    assert refused.returncode == 4, refused.stderr
    assert "STORE" in refused.stderr


@HTTP1
def test_a_client_that_leaves_frees_its_wait(tmp_path: Path, protocol: str) -> None:
    env = {"TOPICS_HOT_PROTOCOL": str(int(protocol == "hot"))}
    with opened(tmp_path / "data", env) as server:
        api = Http(server.port)
        assert api("POST", "/v0/topics/t", ONE).status == 201
        api.close()
        until(lambda: not connected(server.port))
        before = sockets(server.pid)
        leavers = [waiting(server.port, "t") for _ in range(50)]
        until(lambda: sockets(server.pid) == before + 50)
        for leaver in leavers:
            leaver.close()
        until(lambda: sockets(server.pid) == before)


def test_a_waiting_diff_is_woken_by_a_write(server: Server, api: Http, topic: str) -> None:
    assert api("POST", f"/v0/topics/{topic}", {"records": [{"data": 1}]}).status == 201
    waiters = [waiting(server.port, topic) for _ in range(8)]
    assert api("POST", f"/v0/topics/{topic}", {"records": [{"data": 2}]}).status == 200
    for waiter in waiters:
        records = json.loads(waiter.getresponse().read())["records"]
        assert [r["data"] for r in records] == [2]
        waiter.close()


@HTTP1
def test_pipelined_requests_are_answered_in_order(server: Server, topic: str) -> None:
    def request(value: int, last: bool) -> bytes:
        body = b'{"records":[{"data":%d}]}' % value
        return (
            f"POST /v0/topics/{topic} HTTP/1.1\r\nHost: localhost\r\n"
            f"{'Connection: close' if last else 'X: y'}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        ).encode() + body

    answer = raw_exchange(server.port, *[request(i, i == 19) for i in range(20)])
    firsts = [int(p.split(b",")[0]) for p in answer.split(b'"first_seq":')[1:]]
    assert firsts == list(range(1, 21))


def test_a_killed_server_leaves_a_directory_that_opens(own_server: Server) -> None:
    own_server.start()
    assert once(own_server.port, "POST", "/v0/topics/t", {"records": [{"data": 1}]}).status == 201
    own_server.kill()
    with pytest.raises((OSError, http.client.HTTPException)):
        once(own_server.port, "GET", "/healthz")
    own_server.start()
    assert once(own_server.port, "GET", "/v0/topics/t").json["head_seq"] == 1
    assert own_server.stop() == 0


def test_a_closed_directory_is_free_while_handles_live(tmp_path: Path) -> None:
    first = te.open(tmp_path / "data")
    first.topic("t").append([1])
    with pytest.raises(te.Locked):
        te.open(tmp_path / "data")
    first.close()
    with te.open(tmp_path / "data") as second:
        assert [r.data for r in second.topic("t").read(after=0)] == [1]
    assert first.closed


class Few(Server):
    """A server that is started with few descriptors."""

    most = 4096

    @property
    def program(self) -> tuple[str, ...]:  # type: ignore[override]
        limits = f"resource.setrlimit(resource.RLIMIT_NOFILE, (256, {self.most}))"
        start = "from topics_engine.cli import main; sys.exit(main())"
        return "-c", f"import resource, sys; {limits}; {start}"


class Fewest(Few):
    """One that cannot have more."""

    most = 256


def test_a_server_takes_the_descriptors_that_it_may_have(tmp_path: Path) -> None:
    for server in running(tmp_path / "data", kind=Few):
        with crowd(server, 400):
            for n in range(3):
                assert once(server.port, "POST", f"/v0/topics/t{n}", ONE).status == 201
            until(lambda pid=server.pid: descriptors(pid) > 400)


def test_clients_leave_the_engine_descriptors(tmp_path: Path) -> None:
    """New files all the time, and more clients than there are descriptors."""
    env = {
        "TOPICS_CHECKPOINT_INTERVAL_MS": "30",
        "TOPICS_CHECKPOINT_BYTES": "65536",
        "TOPICS_WAL_FILE_MIN": "65536",
        "TOPICS_WAL_FILE_MAX": "65536",
    }
    for server in running(tmp_path / "data", env, Fewest):
        api = Http(server.port)
        assert api("POST", "/v0/topics/t", ONE).status == 201
        batch = {"records": [{"data": "x" * 1000} for _ in range(50)]}
        with crowd(server, 400):
            for _ in range(30):
                assert api("POST", "/v0/topics/t", batch).status == 200
            assert api("POST", "/v0/admin/checkpoint").status == 200
            assert descriptors(server.pid) < 256
        api.close()
        until(lambda pid=server.pid: descriptors(pid) < 100)
        assert once(server.port, "POST", "/v0/topics/t", ONE).status == 200


ONE = {"records": [{"data": 1}]}


@contextlib.contextmanager
def crowd(server: Server, size: int) -> Iterator[None]:
    """So many connections that say nothing."""
    with contextlib.ExitStack() as opened:
        for _ in range(size):
            sock = socket.create_connection(("127.0.0.1", server.port), timeout=DEADLINE)
            opened.enter_context(sock)
        yield


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))
