"""SIGHUP and `topics reload`: keys, certificates and the log level of a running server."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from websockets.exceptions import ConnectionClosed

from support.h2_client import Http2Connection, Http2Port
from support.http_client import Http
from support.server import Server
from support.sse import Events
from support.tls import TlsServer, certificate, trust
from support.waiting import DEADLINE, until
from support.websocket import Socket
from topics_engine.asgi import Settings, build
from topics_engine.server.reload import EarlySignal, Reloader

from .test_serve import serve

KEPT, GONE = "kept-key", "gone-key"
KEYS = f"# who may\n{KEPT}\n\n{GONE}:r+w:a.,other-key:read\n"


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


class Logged:
    """A server whose messages are in a file, and that is told to reload."""

    def __init__(self, folder: Path, kind: type[Server], env: dict[str, str]) -> None:
        self.keys = folder / "keys"
        self.keys.write_text(KEYS)
        self.settings = folder / "topics.toml"
        self.settings.write_text('log_level = "warning"\n')
        self._log = folder / "log"
        paths = {"TOPICS_API_KEYS_FILE": str(self.keys), "TOPICS_CONFIG": str(self.settings)}
        self.server = kind(folder / "data", env=paths | {"TOPICS_PROBE_AUTH": "0"} | env)
        with self._log.open("w") as log:
            saved = os.dup(2)
            os.dup2(log.fileno(), 2)
            try:
                self.server.start()
            finally:
                os.dup2(saved, 2)
                os.close(saved)

    @property
    def log(self) -> str:
        return self._log.read_text()

    def reload(self, said: str = "reloaded") -> None:
        """SIGHUP, until the server has said what came of it."""
        before = self.log.count(said)
        os.kill(self.server.pid, signal.SIGHUP)
        until(lambda: self.log.count(said) > before)

    def status(self, key: str, port: int | None = None, name: str = "a.t") -> int:
        """Of a hot write with this key on a connection of its own."""
        with contextlib.closing(Http(port or self.server.port)) as api:
            write = {"records": [{"data": 1}]}
            return api("POST", f"/v0/topics/{name}", write, bearer(key)).status


@pytest.fixture(params=["plain", "hot"])
def logged(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Logged]:
    env = {"TOPICS_HOT_PROTOCOL": str(int(request.param == "hot"))}
    made = Logged(tmp_path, Server, env)
    yield made
    made.server.ensure_dead()


def test_a_revoked_key_and_a_new_one(logged: Logged) -> None:
    port = logged.server.port
    assert logged.status(KEPT) == 201
    kept, gone = Http(port), Http(port)
    write = {"records": [{"data": 1}]}
    assert gone("POST", "/v0/topics/a.t", write, bearer(GONE)).status == 200
    logged.keys.write_text(f"{KEPT}\nnew-key:rw:b.\nother-key:write\n")
    logged.reload("1 new, 1 changed, 1 revoked")
    for where in (port, Http2Port(port)):
        assert logged.status(GONE, where) == 401
        assert logged.status(KEPT, where) == 200
        assert logged.status("new-key", where) == 403
        assert logged.status("new-key", where, "b.t") in (200, 201)
        assert logged.status("other-key", where) == 200
    # On the connections that there were, too.
    assert gone("POST", "/v0/topics/a.t", write, bearer(GONE)).status == 401
    assert kept("POST", "/v0/topics/a.t", write, bearer(KEPT)).status == 200
    logged.keys.write_text(f"{KEPT}\n{GONE}\n")
    logged.reload("1 new, 0 changed, 2 revoked")
    assert logged.status(GONE, name="b.t") == 200, "it has its scopes and prefixes anew"
    for client in (kept, gone):
        client.close()
    assert logged.server.stop() == 0, logged.log


def test_streams_of_a_revoked_key_end(logged: Logged) -> None:
    port, path = logged.server.port, "/v0/watch?topic=a.t"
    assert logged.status(KEPT) == 201
    kept = Events(port, path, bearer(KEPT))
    mine = [Events(port, path, bearer(GONE)), Events(Http2Port(port), path, bearer(GONE))]
    for events in (kept, *mine):
        events.until("caught-up")
    sockets = {key: Socket(port, additional_headers=bearer(key)) for key in (KEPT, GONE)}
    for made in sockets.values():
        assert made.ask("ping", "pong")
    logged.keys.write_text(f"{KEPT}\n")
    logged.reload()
    for events in mine:
        last = events.until("error")
        assert (last.data["code"], last.data["error"]) == (401, "unauthorized")
        events.close()
    assert sockets[GONE].take("error")["code"] == "unauthorized"
    with pytest.raises(ConnectionClosed) as closed:
        sockets[GONE].take()
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1008
    assert logged.status(KEPT) == 200
    assert kept.until("record").data["topic"] == "a.t"
    assert sockets[KEPT].ask("ping", "pong")
    for left in (kept, *sockets.values()):
        left.close()
    assert logged.server.stop() == 0, logged.log


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ("a:fly\n", "entry 1"),
        ("", "no key"),
        ("# only this\n", "no key"),
        ("a\nb\na\n", "given before"),
        (None, "No such file"),
    ],
)
def test_a_bad_file_keeps_what_there_is(tmp_path: Path, keys: str | None, why: str) -> None:
    logged = Logged(tmp_path, Server, {})
    try:
        if keys is None:
            logged.keys.unlink()
        else:
            logged.keys.write_text(keys)
        logged.reload("nothing was changed")
        assert why in logged.log
        assert KEPT not in logged.log
        assert logged.status(KEPT) == 201
        assert logged.status(GONE) == 200
        logged.keys.write_text(f"{KEPT}\n")
        logged.reload("2 revoked")
        assert logged.status(GONE) == 401
        assert logged.server.stop() == 0, logged.log
    finally:
        logged.server.ensure_dead()
    logged.keys.write_text("")
    refused = serve("--data-dir", str(tmp_path / "d"), TOPICS_API_KEYS_FILE=str(logged.keys))
    assert refused.returncode == 2
    assert "no key" in refused.stderr


@pytest.mark.parametrize("hot", ["0", "1"])
def test_a_key_file_that_is_no_file_keeps_what_there_is(tmp_path: Path, hot: str) -> None:
    logged = Logged(tmp_path, Server, {"TOPICS_HOT_PROTOCOL": hot})
    try:
        assert logged.status(KEPT) == 201
        logged.keys.unlink()
        # Nothing ever writes to it, so its reader would wait for ever.
        os.mkfifo(logged.keys)
        logged.reload("nothing was changed")
        assert f"{logged.keys} is not a regular file" in logged.log
        assert logged.status(KEPT) == 200
        logged.keys.unlink()
        logged.keys.mkdir()
        logged.reload("nothing was changed")
        assert logged.status(KEPT) == 200
        assert logged.server.stop() == 0, logged.log
    finally:
        logged.server.ensure_dead()
    for path in (str(logged.keys), "/dev/zero"):
        refused = serve("--data-dir", str(tmp_path / "d"), TOPICS_API_KEYS_FILE=path)
        assert refused.returncode == 2
        assert f"{path} is not a regular file" in refused.stderr


LOADING = """
import signal, sys
sys.argv = ["topics", *sys.argv[1:]]

class Finder:
    def find_spec(self, name, path, target=None):
        if name == "topics_engine.cli.main":
            print(signal.getsignal(signal.SIGHUP).name)

sys.meta_path.insert(0, Finder())
from topics_engine.cli.main import main
"""


@pytest.mark.parametrize(
    ("command", "handler"),
    [(["serve"], "SIG_IGN"), (["--json", "serve"], "SIG_IGN"), (["ls"], "SIG_DFL")],
)
def test_a_server_that_loads_its_modules_survives(command: list[str], handler: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOADING, *command],
        capture_output=True, text=True, check=True, timeout=DEADLINE,
    )  # fmt: skip
    assert done.stdout.split() == [handler], done


def test_a_signal_before_the_loop_runs_reloads_then(tmp_path: Path) -> None:
    reads = []

    def read() -> Settings:
        reads.append(True)
        return Settings()

    async def run(early: EarlySignal) -> None:
        app = build(Settings(data_dir=str(tmp_path / "data")))
        async with app.running():
            Reloader(app, None, read, fixed_keys="", early=early).install()
            while not reads:
                await asyncio.sleep(0.01)

    before = signal.getsignal(signal.SIGHUP)
    early = EarlySignal()
    signal.signal(signal.SIGHUP, early)
    try:
        os.kill(os.getpid(), signal.SIGHUP)
        until(lambda: early.received)
        asyncio.run(asyncio.wait_for(run(early), DEADLINE))
    finally:
        signal.signal(signal.SIGHUP, before)


def serial(port: int) -> int:
    """Of the certificate that a new connection is shown, by address and by name."""
    found = set()
    for name in (None, "localhost"):
        sock = socket.create_connection(("127.0.0.1", int(port)), timeout=DEADLINE)
        with trust("h2").wrap_socket(sock, server_hostname=name) as made:
            assert made.selected_alpn_protocol() == "h2"
            der = made.getpeercert(binary_form=True)
            assert der is not None
            found.add(hash(der))
    assert len(found) == 1
    return found.pop()


def test_a_new_certificate_is_shown_to_new_connections(tmp_path: Path, tls: dict[str, str]) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    cert.write_bytes(Path(tls["TOPICS_TLS_CERT"]).read_bytes())
    key.write_bytes(Path(tls["TOPICS_TLS_KEY"]).read_bytes())
    env = {"TOPICS_TLS_CERT": str(cert), "TOPICS_TLS_KEY": str(key)}
    logged = Logged(tmp_path, TlsServer, env)
    try:
        port = logged.server.port
        first = serial(port)
        open_ = Http2Connection("127.0.0.1", port, tls=trust("h2"))
        assert open_.start("GET", "/v0/health").read()
        (tmp_path / "other").mkdir()
        other = certificate(tmp_path / "other")
        # A certificate without its key is nothing that a client could be shown.
        cert.write_bytes(Path(other["TOPICS_TLS_CERT"]).read_bytes())
        logged.reload("nothing was changed")
        assert serial(port) == first
        key.write_bytes(Path(other["TOPICS_TLS_KEY"]).read_bytes())
        logged.reload()
        assert serial(port) != first
        assert open_.start("GET", "/v0/health").read(), "it was dropped"
        # The server finds out that the client has left while it ends, or before.
        open_.close()
        assert logged.server.stop() == 0, logged.log
    finally:
        logged.server.ensure_dead()


def topics(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "topics_engine.cli", *arguments],
        capture_output=True,
        text=True,
        timeout=2 * DEADLINE,
    )


def test_the_command_finds_the_server(logged: Logged, tmp_path: Path) -> None:
    folder = str(logged.server.data_dir)
    logged.settings.write_text('log_level = "info"\n')
    told = topics("reload", "--data-dir", folder)
    assert told.returncode == 0, told
    assert str(logged.server.pid) in told.stdout
    until(lambda: "log level info" in logged.log)
    logged.settings.write_text('log_level = "loud"\n')
    logged.reload("nothing was changed")
    assert "loud" in logged.log
    assert logged.server.stop() == 0, logged.log
    # Its lock file is still there, and names a process that may be another's now.
    told = topics("reload", "--data-dir", folder)
    assert told.returncode == 1
    assert "no server" in told.stderr
    assert topics("reload", "--data-dir", str(tmp_path / "none")).returncode == 3
    assert topics("reload", "--url", "http://127.0.0.1:1").returncode == 2


def test_an_engine_that_is_no_server_is_left_alone(tmp_path: Path) -> None:
    import topics_engine as te

    with te.open(tmp_path / "data"):
        told = topics("reload", "--data-dir", str(tmp_path / "data"))
        assert told.returncode == 1
        assert "no server" in told.stderr


def test_a_server_without_keys_or_tls_survives(own_server: Server) -> None:
    own_server.start()
    with contextlib.closing(Http(own_server.port)) as api:
        for _ in range(3):
            os.kill(own_server.pid, signal.SIGHUP)
            assert api("GET", "/v0/health").status == 200
    assert own_server.stop() == 0
