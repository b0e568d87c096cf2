"""Arguments over TOPICS_* over topics.toml over defaults, each with its source."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest

import topics_engine as te
from topics_engine import _core, settings
from topics_engine.options import SERVER


def test_defaults_are_the_engines() -> None:
    resolved = settings.resolve(environ={})
    native = {name: default for name, _, _, default, _ in _core.settings()}
    assert dict(resolved) == {"data_dir": "./topics-data", **native}
    assert set(resolved.sources.values()) == {"default"}
    assert resolved.native() == {}


def test_precedence(tmp_path: Path) -> None:
    file = tmp_path / "topics.toml"
    file.write_text("max_topics = 1\nsync_interval_ms = 2\nwal_shards = 3\nrecovery = 'salvage'\n")
    environ = {"TOPICS_MAX_TOPICS": "10", "TOPICS_SYNC_INTERVAL_MS": "20", "OTHER": "x"}
    resolved = settings.resolve({"max_topics": 100, "wal_shards": None}, environ, file)
    assert resolved["max_topics"] == 100
    assert resolved["sync_interval_ms"] == 20
    assert resolved["wal_shards"] == 3
    assert resolved["recovery"] == "salvage"
    assert resolved.sources["max_topics"] == "argument"
    assert resolved.sources["sync_interval_ms"] == "environment TOPICS_SYNC_INTERVAL_MS"
    assert resolved.sources["wal_shards"] == str(file)
    assert resolved.sources["max_total_bytes"] == "default"


def test_the_file_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The working directory of the tests is `tmp_path`.
    Path("topics.toml").write_text("max_topics = 1\n")
    assert settings.resolve()["max_topics"] == 1
    other = tmp_path / "other.toml"
    other.write_text("max_topics = 2\n")
    monkeypatch.setenv("TOPICS_CONFIG", str(other))
    assert settings.resolve()["max_topics"] == 2
    other.unlink()
    with pytest.raises(te.InvalidRequest, match="settings file does not exist"):
        settings.resolve()


@pytest.mark.parametrize("below", ["", "/", "/remote", "/topics/remote", "/../d%61ta", "/x/../y"])
def test_a_remote_in_the_data_directory_is_refused(tmp_path: Path, below: str) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "data")
    for name in ("data", "link"):
        url = f"file://{tmp_path / name}{below}"
        with pytest.raises(te.InvalidRequest, match="in the data directory") as refused:
            te.open(tmp_path / "data", remote_url=url)
        assert refused.value.detail["field"] == "remote_url"
        assert not (tmp_path / "data").exists()


def test_a_remote_whose_file_system_hangs_is_compared_as_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hung, real_path = threading.Event(), os.path.realpath

    def realpath(path: str) -> str:
        if "remote" in Path(path).name:
            hung.wait()
        return real_path(path)

    monkeypatch.setattr(os.path, "realpath", realpath)
    monkeypatch.setattr(settings, "REMOTE_SECONDS", 0.01)
    data = tmp_path / "data"
    try:
        beside = (tmp_path / "remote").as_uri()
        assert settings.resolve({"data_dir": str(data), "remote_url": beside}, {})
        below = f"{data.as_uri()}/../data/remote"
        with pytest.raises(te.InvalidRequest, match="in the data directory"):
            settings.resolve({"data_dir": str(data), "remote_url": below}, {})
    finally:
        hung.set()


def test_a_remote_beside_the_data_directory_is_taken(tmp_path: Path) -> None:
    for name in ("data-remote", "dat", "remote/data"):
        (tmp_path / name).mkdir(parents=True)
        with te.open(tmp_path / "data", remote_url=(tmp_path / name / "x").as_uri()) as db:
            assert db.topic("t").append([1]).last_seq > 0


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"max_topics": "many"}, "max_topics .argument.: 'many' is not a valid int"),
        ({"max_topics": -1}, "max_topics"),
        ({"max_topics": True}, "max_topics"),
        ({"recovery": 5}, "recovery"),
        ({"recovery": "never"}, "recovery .argument.: 'never' is not one of strict, salvage"),
        ({"remote_window_ms": "ever"}, "remote_window_ms .argument.: 'ever' is not .* or never"),
        ({"remote_window_ms": -1}, "remote_window_ms .argument.: -1 is not .* or never"),
        ({"remote_interval_ms": "never"}, "remote_interval_ms .*'never' is not a valid int"),
        ({"memory_bytes": -1}, "memory_bytes .argument.: -1 is not a size"),
        ({"no_such_setting": 1}, "unknown setting `no_such_setting`"),
    ],
)
def test_refusals(given: dict[str, object], said: str) -> None:
    with pytest.raises(te.InvalidRequest, match=said):
        settings.resolve(given, {})


@pytest.mark.parametrize(("said", "value"), [("never", "never"), ("0", 0), (5, 5)])
def test_a_window_is_a_time_or_never(said: Any, value: Any, tmp_path: Path) -> None:
    environ = {"TOPICS_REMOTE_WINDOW_MS": str(said)}
    resolved = settings.resolve({}, environ)
    assert resolved["remote_window_ms"] == value
    assert settings.resolve({"remote_window_ms": said}, {})["remote_window_ms"] == value
    url = (tmp_path / "remote").as_uri()
    te.open(tmp_path / "data", remote_url=url, remote_window_ms=value).close()


def test_unknown_names_in_the_file(tmp_path: Path) -> None:
    file = tmp_path / "topics.toml"
    file.write_text("colour = 1\nport = 4000\n")
    with pytest.raises(te.InvalidRequest, match="unknown setting `colour`"):
        settings.resolve({}, {}, file)
    resolved = settings.resolve({}, {}, file, others={"colour", *SERVER})
    assert "colour" not in resolved
    assert "port" not in resolved, "the server's settings share the file"
    file.write_text("port = ")
    with pytest.raises(te.InvalidRequest, match=r"topics\.toml"):
        settings.resolve({}, {}, file)


def test_the_engine_gets_them(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOPICS_MAX_TOPICS", "1")
    with te.open(data_dir, max_tag_bytes=4) as db:
        assert db.settings is not None
        assert db.settings.sources["max_topics"] == "environment TOPICS_MAX_TOPICS"
        db.topic("a").append(1, tag="1234")
        with pytest.raises(te.InvalidRequest) as caught:
            db.topic("a").append(1, tag="12345")
        assert caught.value.code == "record_too_large"
        with pytest.raises(te.Throttled) as throttled:
            db.topic("b").append(1)
        assert throttled.value.detail["max"] == 1


def test_the_native_module_refuses_what_it_does_not_know(data_dir: Path) -> None:
    for given in ({"x": 1}, {"recovery": "never"}, {"max_topics": "1"}, {"io_backend": "tape"}):
        with pytest.raises(te.InvalidRequest):
            _core.Engine.open(str(data_dir), given)
    assert not data_dir.exists()


def test_data_dir_is_a_setting_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOPICS_DATA_DIR", str(tmp_path / "elsewhere"))
    with te.open() as db:
        assert db.path == str(tmp_path / "elsewhere")


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("64MiB", 64 << 20), ("1GB", 10**9), ("1.5 GiB", 3 << 29), ("0B", 0), ("7 kb", 7000),
        ("0.1KiB", 103), ("2TB", 2 * 10**12), ("1", None), ("1M", None), ("-1MB", None),
        ("1e3MB", None), ("MiB", None), ("1..5MB", None), ("\u0661MB", None), ("", None),
    ],
)  # fmt: skip
def test_sizes_with_units(text: str, size: int | None) -> None:
    from topics_engine.sizes import parse_size

    assert parse_size(text) == size


def test_every_size_takes_a_unit_wherever_it_is_given(tmp_path: Path) -> None:
    sizes = [name for name, found in settings.engine_settings().items() if found.kind == "size"]
    assert {"memory_bytes", "wal_file_min", "max_tag_bytes"} <= set(sizes)
    for name in sizes:
        for given in ("1MiB", str(1 << 20), 1 << 20):
            assert settings.resolve({name: given}, {})[name] == 1 << 20
        assert settings.resolve({}, {f"TOPICS_{name.upper()}": "1MB"})[name] == 10**6
        with pytest.raises(te.InvalidRequest, match="64MiB or 1GB"):
            settings.resolve({name: "1 megabyte"}, {})
    with pytest.raises(te.InvalidRequest):
        settings.resolve({"max_topics": "1MB"}, {})
    with te.open(tmp_path / "data", memory_bytes="32MiB") as db:
        assert db.settings["memory_bytes"] == 32 << 20
        topic = db.topic("t", cap_bytes="1.5MB")
        topic.append(["x" * 100] * 3)
        assert topic.state().config["cap_bytes"] == 1_500_000
        assert len(topic.consumer("c").read(max_bytes="1B")) == 1
        assert len(db.split("t", max_bytes="1GiB")) == 1
        for wrong in ("1 lot", "-1MB", 1.5, True):
            with pytest.raises(te.InvalidRequest, match="cap_bytes must be a size"):
                db.topic("u", cap_bytes=wrong).create()  # type: ignore[arg-type]
