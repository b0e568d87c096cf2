"""`doctor --remote` and the commands `remote`, over a folder that stands for an object store."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest

import topics_engine as te
from support import cold
from support.processes import LIMIT
from support.waiting import until
from topics_engine.cli import main
from topics_engine.cli.exits import Exit

pytestmark = pytest.mark.usefixtures("isolated")


@pytest.fixture
def url(tmp_path: Path) -> str:
    return (tmp_path / "remote").as_uri()


@pytest.fixture
def archived(data_dir: Path, url: str) -> str:
    with te.open(data_dir, **(cold.settings(url) | {"pack_bytes": 100})) as db:
        cold.make_cold(db)
    return url


def printed(capsys: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def packs(tmp_path: Path) -> list[Path]:
    return cold.packs(tmp_path / "remote")


def named(archived: str, tmp_path: Path, capsys: Any) -> list[Path]:
    """The packs that the archive consists of: the folder may still have some that were replaced."""
    found = packs(tmp_path)
    for pack in found:
        pack.rename(pack.with_suffix(".away"))
    assert main(["verify", archived]) == Exit.CORRUPT
    missing = {p["object"].rpartition("/")[2] for p in printed(capsys)["problems"]}
    for pack in found:
        pack.with_suffix(".away").rename(pack)
    return [pack for pack in found if pack.name in missing]


def test_doctor_probes_a_server(url: str, tmp_path: Path, capsys: Any) -> None:
    assert main(["doctor", "--remote", url]) == Exit.OK
    found = printed(capsys)
    assert found["suitable"] is found["conditional_writes"] is True
    assert {row["result"] for row in found["features"]} == {"present"}
    left = [
        p for p in (tmp_path / "remote").glob("[!.]*") if any(f.is_file() for f in p.rglob("*"))
    ]
    assert left == []


def test_doctor_probes_the_remote_of_the_settings(
    url: str, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["doctor", "--remote"]) == Exit.USAGE
    assert "TOPICS_REMOTE_URL" in capsys.readouterr().err
    monkeypatch.setenv("TOPICS_REMOTE_URL", url)
    assert main(["doctor", "--remote"]) == Exit.OK
    assert printed(capsys)["remote"] == url


def test_doctor_says_what_it_did_not_look_at(
    archived: str, data_dir: Path, tmp_path: Path, capsys: Any
) -> None:
    command = ["--data-dir", str(data_dir), "doctor"]
    assert main(command) == Exit.OK
    found = printed(capsys)
    indexes = list(data_dir.glob("topics/*/*.idx"))
    assert found["cold_segments"] == len(indexes) - cold.files(data_dir) > 0
    said = f"{found['cold_segments']} segments in the object store were not looked at"
    assert f"{said}: `topics verify URL` does" in found["advice"]

    assert main(["--data-dir", str(tmp_path / "other"), "doctor"]) == Exit.OK
    found = printed(capsys)
    assert found["cold_segments"] == 0
    assert "object store" not in found["advice"]


def test_doctor_says_what_an_unreachable_server_does(
    capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    assert main(["doctor", "--remote", "s3://b/p?endpoint=http://127.0.0.1:9"]) == Exit.FAILED
    found = printed(capsys)
    assert {row["result"] for row in found["features"]} == {"unknown"}
    assert found["advice"].startswith("requests failed")


def test_status_of_a_prefix(archived: str, tmp_path: Path, capsys: Any) -> None:
    assert main(["remote", "status", archived]) == Exit.OK
    found = printed(capsys)
    named = packs(tmp_path)
    assert found["packs"] <= len(named)
    assert found["packs"] > 0
    assert found["holder"].startswith(f"process {os.getpid()} with /")
    assert found["base"].startswith(f"{found['epoch']:016x}/b")
    assert 0 <= found["base_age_ms"] < 1000 * LIMIT
    assert found["rounds"] > 0
    assert found["earlier_bases"] >= 0
    assert found["dead_ranges"] >= 0
    assert found["closed"]
    assert 0 < found["bytes"] < 1e6


def test_a_new_prefix_is_not_found(url: str, capsys: Any) -> None:
    for command in (["remote", "status", url], ["verify", url]):
        assert main(command) == Exit.NOT_FOUND
        assert "no directory has been archived to it" in capsys.readouterr().err


def test_verify_of_python_is_that_of_the_command(
    archived: str, tmp_path: Path, capsys: Any
) -> None:
    def same(*, data: bool) -> te.Verification:
        code = main(["--json", "verify", archived, *(["--data"] if data else [])])
        command = printed(capsys)
        found = te.verify(archived, data=data)
        assert asyncio.run(te.aio.verify(archived, data=data)) == found
        assert {name: getattr(found, name) for name in command} == command | {
            "problems": tuple(command["problems"])
        }
        assert found.ok is bool(found) is (code == Exit.OK)
        assert (found.files, found.records, found.cold_records) == (0, 0, 0)
        return found

    shallow = same(data=False)
    assert shallow.remote == archived
    assert shallow.ok
    assert shallow.read < shallow.objects, "packs are not read as a whole"
    deep = same(data=True)
    assert deep.ok
    assert deep.objects == shallow.objects
    assert deep.read > shallow.read
    assert deep.bytes > shallow.bytes
    first = named(archived, tmp_path, capsys)[0]
    whole = first.read_bytes()
    first.write_bytes(whole[:100] + bytes([whole[100] ^ 1]) + whole[101:])
    assert same(data=False)
    damaged = same(data=True)
    assert not damaged
    assert damaged.problems[0]["object"].endswith(first.name)


def test_verify_of_a_directory_says_how(data_dir: Path, capsys: Any) -> None:
    te.open(data_dir).close()
    assert main(["verify", str(data_dir)]) == Exit.USAGE
    advice = f"`topics --data-dir {data_dir} verify`"
    assert advice in capsys.readouterr().err
    assert main(["--data-dir", str(data_dir), "verify"]) == Exit.OK


def test_verify_of_python_refuses(url: str, archived: str, data_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(te.NotFound, match="holds nothing yet"):
        te.verify((tmp_path / "new").as_uri())
    with pytest.raises(te.InvalidRequest, match="a directory is read whole"):
        te.verify(data_dir, data=True)
    with pytest.raises(te.InvalidRequest, match="data must be"):
        te.verify(archived, data=1)  # type: ignore[arg-type]


def test_verify_finds_what_is_missing_or_damaged(
    archived: str, tmp_path: Path, capsys: Any
) -> None:
    deep = ["verify", archived, "--data"]
    assert main(deep) == Exit.OK
    found = printed(capsys)
    assert found["ok"]
    assert found["read"] >= 3
    assert main(["verify", "--data"]) == Exit.USAGE
    assert "goes with the URL" in capsys.readouterr().err

    first, second, third = named(archived, tmp_path, capsys)[:3]
    whole = first.read_bytes()
    middle = len(whole) // 2
    first.write_bytes(whole[:100] + bytes([whole[100] ^ 1]) + whole[101:])
    assert main(["verify", archived]) == Exit.OK, "records are not read"
    capsys.readouterr()
    assert main(deep) == Exit.CORRUPT
    [problem] = printed(capsys)["problems"]
    assert problem["object"].endswith(first.name)
    second.write_bytes(second.read_bytes()[:middle])
    third.unlink()
    assert main(["verify", archived]) == Exit.CORRUPT
    problems = {p["object"].rpartition("/")[2]: p["detail"] for p in printed(capsys)["problems"]}
    assert problems.keys() == {second.name, third.name}
    assert problems[third.name] == "it is missing"


def test_forget(archived: str, data_dir: Path, tmp_path: Path, capsys: Any) -> None:
    # Cold records of this directory are in the prefix only.
    command = ["--data-dir", str(data_dir), "remote", "forget", "--yes"]
    assert main(command) == Exit.USAGE
    assert "topics backup" in capsys.readouterr().err

    other, first, second = tmp_path / "other", tmp_path / "first", tmp_path / "second"
    options: Any = {"segment_max_events": 10, "remote_base_interval_ms": 100}

    def archive(to: Path, expected: str) -> None:
        with te.open(other, remote_url=to.as_uri(), hot_retain_segments=100, **options) as db:
            db.topic("t").append([b"x"] * 20)
            db.checkpoint()
            until(lambda: db.metrics()["remote_state"] == expected)

    archive(first, "ok")
    archive(second, "refused")
    assert not (second / "HEAD").exists()
    command[1] = str(other)
    with te.open(other):
        assert main(command) == Exit.FAILED
        assert "has it open" in capsys.readouterr().err
    assert main(command) == Exit.OK
    archive(second, "ok")
    until(lambda: (second / "HEAD").exists())
