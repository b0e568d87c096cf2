"""Opening, closing, locking, forking, interrupting, and who holds the GIL."""

from __future__ import annotations

import os
import pickle
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

import topics_engine as te
from support.processes import LIMIT, child, until_all_wait
from topics_engine import _core, errors


def run(code: str, *args: object, timeout: float = LIMIT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(code), *map(str, args)],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def test_records_survive_close_and_reopen(data_dir: Path) -> None:
    with te.open(data_dir) as db:
        db.topic("t", durability="fsync").append([1, 2])
        db.topic("d").append({"a": 1}, tag="x")
    with te.open(data_dir) as db:
        assert [r.data for r in db.topic("t").read() if isinstance(r, te.Record)] == [1, 2]
        assert db.topic("t").state().config["durability"] == "fsync"
        assert db.topic("t").append(3).first_seq == 3
        (record,) = db.topic("d").read(tag="x")
        assert isinstance(record, te.Record)
        assert record.data == {"a": 1}


def test_an_unknown_config_field_is_refused(data_dir: Path) -> None:
    with te.open(data_dir) as db:
        with pytest.raises((TypeError, te.InvalidRequest), match="cap_record"):
            db.topic("t", cap_record=5).append(1)
        db.topic("t", cap_records=5).append(1)
        assert db.topic("t").state().config["cap_records"] == 5


def test_close_is_idempotent_and_final(data_dir: Path) -> None:
    db = te.open(data_dir)
    t = db.topic("t")
    t.append(1)
    states = [db.closed]
    db.close()
    db.close()
    states.append(db.closed)
    assert states == [False, True]
    for call in (lambda: t.append(1), lambda: list(t.read()), t.state, db.sync, db.checkpoint):
        with pytest.raises(te.Closed) as caught:
            call()
        assert caught.value.code == "shutting_down"


def test_close_wakes_waiters(data_dir: Path) -> None:
    db = te.open(data_dir)
    t = db.topic("t")
    t.append(1)
    caught: list[BaseException] = []

    def wait() -> None:
        try:
            t.wait(1)
        except BaseException as error:
            caught.append(error)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    until_all_wait()
    db.close()
    thread.join(60)
    assert not thread.is_alive()
    assert [type(e) for e in caught] == [te.Closed]


def test_a_second_open_is_locked(data_dir: Path) -> None:
    with te.open(data_dir):
        with pytest.raises(te.Locked) as caught:
            te.open(data_dir)
        assert caught.value.pid == os.getpid()
        assert caught.value.url is None
        other = run("import sys, topics_engine as te; te.open(sys.argv[1])", data_dir)
        assert other.returncode == 1
        assert f"is open in process {os.getpid()}" in other.stderr
    with te.open(data_dir, url="http://127.0.0.1:4000"):
        with pytest.raises(te.Locked, match=r"te\.connect\('http://127\.0\.0\.1:4000'\)") as caught:
            te.open(data_dir)
        assert caught.value.url == "http://127.0.0.1:4000"
    te.open(data_dir).close()


def test_a_directory_that_cannot_be_made_is_named_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(te.InvalidRequest) as caught:
        te.open(tmp_path / "none" / "data")
    assert caught.value.code == "invalid_directory"
    assert caught.value.detail == {"dir": str(tmp_path / "none" / "data")}
    assert f"there is no folder {tmp_path / 'none'}: create it" in str(caught.value)
    assert not (tmp_path / "none").exists()
    (tmp_path / "file").write_text("")
    for name in ("file", "file/data"):
        with pytest.raises(te.InvalidRequest, match="is a file, not a folder"):
            te.open(tmp_path / name)


def test_what_was_acked_survives_an_exit_without_close(data_dir: Path) -> None:
    done = run(
        """
        import sys, topics_engine as te
        db = te.open(sys.argv[1])
        db.topic("t").append([1, 2, 3])
        """,
        data_dir,
    )
    assert (done.returncode, done.stderr) == (0, "")
    with te.open(data_dir) as db:
        assert db.topic("t").state().count == 3


def test_a_process_that_dies_loses_nothing_acked(data_dir: Path) -> None:
    done = run(
        """
        import os, signal, sys, topics_engine as te
        db = te.open(sys.argv[1])
        for i in range(100):
            db.topic("t").append(i)
        os.kill(os.getpid(), signal.SIGKILL)
        """,
        data_dir,
    )
    assert done.returncode == -signal.SIGKILL
    with te.open(data_dir) as db:
        data = [r.data for r in db.topic("t").read(after=0) if isinstance(r, te.Record)]
        assert data == list(range(100))


def test_a_forked_child_is_told_and_touches_nothing(data_dir: Path) -> None:
    done = run(
        """
        import gc, os, sys, topics_engine as te
        db = te.open(sys.argv[1])
        t = db.topic("t")
        t.append(1)
        child = os.fork()
        if child == 0:
            said = []
            for call in (lambda: t.append(2), lambda: list(t.read()), t.state, db.sync, t.sync):
                try:
                    call()
                except te.Closed as error:
                    said.append(str(error))
            assert len(said) == 5, said
            assert all("fork" in text for text in said), said
            assert db.closed
            db.close()
            del t, db
            gc.collect()
            sys.exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        t.append(3)
        db.sync()
        assert [r.data for r in t.read()] == [1, 3]
        db.close()
        """,
        data_dir,
    )
    assert (done.returncode, done.stderr) == (0, "")
    with te.open(data_dir) as db:
        assert db.topic("t").state().count == 2


@pytest.mark.parametrize(
    "wait",
    [
        "t.wait(1)",
        "t.wait(1, timeout=1000)",
        "db.queue('jobs').claim('w', wait=1000)",
        "next(db.queue('jobs').work('w'))",
        "t.consumer('c', start='latest').read(wait=1000)",
        "t.consumer('c', 'at_most_once', start='latest').read(wait=1000)",
        "next(db.watch('t').batches())",
    ],
)
def test_ctrl_c_interrupts_a_wait(data_dir: Path, wait: str) -> None:
    code = f"""
        import signal, sys, topics_engine as te
        # A process that was started in the background inherits it as ignored.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        with te.open(sys.argv[1]) as db:
            t = db.topic("t")
            t.append(1)
            try:
                print("waiting", flush=True)
                {wait}
            except KeyboardInterrupt:
                t.append(2)
                print("interrupted", t.state().head_seq, flush=True)
        """
    with child([sys.executable, "-c", textwrap.dedent(code), data_dir]) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "waiting\n"
        # The signal may come before the wait begins: then the interpreter raises it.
        until_all_wait(process.pid)
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "interrupted 2\n"
        assert process.wait(LIMIT) == 0


def test_the_gil_is_free_while_a_call_waits(db: te.Database) -> None:
    """Another thread counts while this one waits: it wakes the waiter itself, by appending."""
    t = db.topic("t")
    t.append(0)
    counted = 0

    def count() -> None:
        nonlocal counted
        for _ in range(1000):
            counted += 1
        t.append(counted)

    thread = threading.Thread(target=count, daemon=True)
    thread.start()
    # If it held the GIL, the other thread could not append, and this would not return.
    assert t.wait(1, timeout=60) is True
    thread.join(60)
    assert counted == 1000


def test_the_gil_is_free_while_an_append_waits_for_the_disk(db: te.Database) -> None:
    """Threads append until two of them are inside together, and a third thread has seen one."""
    t = db.topic("t", durability="fsync")
    inside = most = appended = 0
    lock = threading.Lock()
    seen, over = threading.Event(), threading.Event()
    until = time.monotonic() + 60

    def write() -> None:
        nonlocal inside, most, appended
        while (most < 2 or not seen.is_set()) and time.monotonic() < until:
            with lock:
                inside += 1
                most = max(most, inside)
            t.append("x")
            with lock:
                inside -= 1
                appended += 1

    def watch() -> None:
        while not over.is_set():
            if inside:
                seen.set()

    threads = [threading.Thread(target=write, daemon=True) for _ in range(8)]
    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
            assert not thread.is_alive()
    finally:
        over.set()
        watcher.join(60)
    assert t.state().head_seq == appended
    assert most > 1
    assert seen.is_set(), "no other thread ran while appends were inside"


def test_threads_share_handles(db: te.Database) -> None:
    t = db.topic("t")

    def write(n: int) -> None:
        for i in range(100):
            t.append([n, i])

    threads = [threading.Thread(target=write, args=(n,), daemon=True) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    records = [r for r in t.read(after=0) if isinstance(r, te.Record)]
    assert [r.seq for r in records] == list(range(1, 801))


def test_sync_and_checkpoint(db: te.Database) -> None:
    t = db.topic("t")
    t.append(list(range(1000)))
    t.sync()
    db.sync()
    db.checkpoint()
    assert [r.data for r in t.read() if isinstance(r, te.Record)] == list(range(1000))
    counted = db.metrics()
    assert (counted["appends"], counted["append_records"], counted["topics"]) == (1, 1000, 1)


def test_every_code_has_its_class() -> None:
    for code, kind in [
        ("invalid_request", te.InvalidRequest),
        ("invalid_directory", te.InvalidRequest),
        ("topic_not_found", te.NotFound),
        ("already_exists", te.AlreadyExists),
        ("head_mismatch", te.HeadMismatch),
        ("idempotency_mismatch", te.IdempotencyMismatch),
        ("topic_not_empty", te.Conflict),
        ("topic_full", te.Full),
        ("throttled", te.Throttled),
        ("storage_unavailable", te.Unavailable),
        ("corrupt", te.Corrupt),
        ("locked", te.Locked),
        ("shutting_down", te.Closed),
        ("unauthorized", te.Unauthorized),
        ("forbidden", te.Forbidden),
        ("internal", te.TopicsError),
        ("something_new", te.TopicsError),
    ]:
        error = errors.make(code, "said", {"retry_after_ms": 1500})
        assert type(error) is kind
        assert (error.code, str(error)) == (code, "said")
        assert error.retryable is (kind in (te.Full, te.Throttled, te.Unavailable))
        copy = pickle.loads(pickle.dumps(error))
        assert (type(copy), copy.code, copy.detail) == (kind, code, error.detail)
    statuses = {"head_mismatch": 409, "topic_not_found": 404, "shutting_down": 503, "unheard": 500}
    for code, status in statuses.items():
        error = errors.make(code, "said")
        assert error.status == status
        error.status = 418
        assert pickle.loads(pickle.dumps(error)).status == 418
    throttled = errors.make("throttled", "x", {"retry_after_ms": 1500})
    assert isinstance(throttled, te.Throttled)
    assert throttled.retry_after == 1.5
    locked = errors.from_native("locked", "held", '{"pid": 5, "url": "http://x"}')
    assert isinstance(locked, te.Locked)
    assert (locked.pid, locked.url) == (5, "http://x")
    assert "te.connect('http://x')" in str(locked)


def test_errors_for_servers() -> None:
    status, body = _core.error_body("throttled", 'a "b"', b'{"retry_after_ms": 1001}')
    assert status == 429
    assert (
        body
        == b'{"error":{"code":"throttled","message":"a \\"b\\"","detail":{"retry_after_ms": 1001}}}'
    )
    assert _core.retry_after(body) == 2
    assert _core.retry_after(b'{"error":{}}') == 1
    with pytest.raises(te.InvalidRequest):
        _core.error_body("internal", "x", b"{")


def test_an_import_loads_what_every_program_uses() -> None:
    code = """
        import sys, topics_engine as te
        print(*sorted({"asyncio", "ssl", "pyarrow", "uvicorn", "h2"} & set(sys.modules)))
        assert {"aio", "connect", "open"} <= set(dir(te))
        te.connect, te.aio.open
        print(*sorted({"asyncio", "ssl", "pyarrow", "uvicorn", "h2"} & set(sys.modules)))
    """
    assert run(code).stdout.splitlines() == ["", "asyncio ssl"]


@pytest.mark.parametrize("durability", ["disk", "fsync"])
def test_no_ack_after_the_lock_file_went_is_lost(data_dir: Path, durability: str) -> None:
    """A writing process whose lock file another one removes, while a third one tries to open."""
    code = """
        import sys, topics_engine as te
        db = te.open(sys.argv[1])
        t = db.topic("t", durability=sys.argv[2])
        for i in range(1000000):
            try:
                seq = t.append(i).first_seq
            except te.Unavailable as e:
                print(e.detail["reason"], flush=True)
                sys.stdin.read()
                break
            print(seq, flush=True)
    """
    command = [sys.executable, "-c", textwrap.dedent(code), data_dir, durability]
    with child(command, stdin=subprocess.PIPE) as writer:
        end, out = writer.stdin, writer.stdout
        assert end is not None
        assert out is not None
        lines = [next(out) for _ in range(20)]
        (data_dir / ".topics.lock").unlink()
        with pytest.raises(te.Locked, match="end that process first"):
            te.open(data_dir)
        while lines[-1] != "lock_lost\n":
            lines.append(next(out))
        end.close()
        writer.wait(LIMIT)
    acked = [int(line) for line in lines[:-1]]
    with te.open(data_dir) as db:
        held = db.topic("t").state().head_seq
        assert held >= acked[-1], f"{len(acked)} acked, {held} there"


def test_a_lock_file_that_is_a_link_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("of somebody else")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / ".topics.lock").symlink_to(other)
    with pytest.raises(te.TopicsError, match="symbolic link"):
        te.open(tmp_path / "data")
    assert other.read_text() == "of somebody else"


def test_a_relative_path_is_that_of_the_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    with te.open("data") as db:
        t = db.topic("t", durability="fsync")
        t.append(1)
        monkeypatch.chdir(tmp_path / "elsewhere")
        # More than the log file in use has room for, and a segment of it.
        t.append_batch([b"x" * 100_000] * 30)
        db.checkpoint()
    assert list((tmp_path / "elsewhere").iterdir()) == []
    with te.open(tmp_path / "data") as db:
        assert db["t"].state().head_seq == 31


def test_a_database_in_memory_leaves_nothing_behind() -> None:
    with te.open(":memory:", max_topics=10) as db:
        where = Path(db.path)
        assert db.topic("t").append([1, 2]).durability == "memory"
        assert db.queue("q").state().config["durability"] == "memory"
        assert db.topic("d", durability="disk").append(1).durability == "disk"
        assert [r.data for r in db.topic("t").read()] == [1, 2]
        assert where.is_dir()
    assert not where.exists()
    with pytest.raises(te.InvalidRequest, match="did you mean `max_topics`"):
        te.open(":memory:", max_topic=10)  # type: ignore[call-arg]


def test_errors_are_also_what_python_calls_them() -> None:
    assert isinstance(errors.make("invalid_request", "x"), ValueError)
    assert isinstance(errors.make("topic_not_found", "x"), LookupError)
    with (
        te.connect("http://127.0.0.1:1", deadline=0.2) as db,
        pytest.raises(ConnectionError) as none,
    ):
        db.topic("t").state()
    assert isinstance(none.value, te.Unavailable)
    assert (none.value.code, none.value.detail["outcome"]) == ("unreachable", "not_sent")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with te.connect(url, deadline=2) as db, pytest.raises(TimeoutError) as late:
            db.topic("t").state()
    assert isinstance(late.value, te.Unavailable)
    assert (late.value.code, late.value.detail["outcome"]) == ("unreachable", "unknown")


def test_a_sync_reports_acked_records_that_were_lost(data_dir: Path) -> None:
    """The size limit of files makes the write behind the ack fail."""
    code = """
        import resource, sys, time, topics_engine as te
        with te.open(sys.argv[1]) as db:
            clicks = db.topic("clicks", durability="memory")
            clicks.append(1)
            db.sync()
            soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
            print(clicks.append([2, 3]).last_seq)
            try:
                db.sync()
            except te.Unavailable as refused:
                print(refused.code)
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
            until = time.monotonic() + 200
            while time.monotonic() < until:
                try:
                    clicks.sync()
                except te.Unavailable:
                    # The engine has not looked for space again.
                    time.sleep(0.01)
                except te.DataLoss as lost:
                    print(lost.gap, lost.retryable)
                    break
            db.sync()
            print([item for item in clicks.read()])
    """
    got = run(code, data_dir)
    gap = "Gap(topic='clicks', first=2, last=3, reason='crash', missed_estimate=2)"
    assert got.stdout.splitlines()[:2] == ["3", "storage_unavailable"], got
    assert got.stdout.splitlines()[2] == f"{gap} False", got
    assert gap in got.stdout.splitlines()[3], got
