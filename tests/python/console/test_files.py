"""The console's files as the server sends them, without a browser."""

from __future__ import annotations

import gzip
import hashlib
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urljoin

import pytest

from support.http_client import Http
from support.server import Server, opened
from topics_engine.asgi.console import DIRECTORY

PAGE_WEIGHT = 150 << 10
NAMES = sorted(p.name for p in DIRECTORY.iterdir() if p.suffix in (".js", ".css", ".html"))


def test_the_page_confines_itself(api: Http) -> None:
    reply = api("GET", "/")
    assert (reply.status, reply.headers["location"]) == (302, "console")
    reply = api("GET", "/console")
    assert (reply.status, reply.headers["content-type"]) == (200, "text/html; charset=utf-8")
    policy = reply.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert reply.headers["x-content-type-options"] == "nosniff"
    html = reply.body.decode()
    assert not re.search(r"<style|\sstyle=|\son\w+=|<script(?![^>]*\ssrc=)", html)


@pytest.mark.parametrize("path", ["/console", "/console/"])
def test_the_page_finds_its_files_from_both_of_its_paths(api: Http, path: str) -> None:
    page = api("GET", path)
    assert page.status == 200
    assert page.headers["cache-control"] == "no-cache"
    links = re.findall(r'(?:src|href)="([^"]+)"', page.body.decode())
    files = [urljoin(f"http://h{path}", link) for link in links if not link.startswith("data:")]
    assert len(files) == 4
    for file in files:
        assert file.startswith("http://h/console/")
        assert api("GET", file.removeprefix("http://h")).status == 200
    again = api("GET", path, headers={"If-None-Match": page.headers["etag"]})
    assert again.status == 304


@pytest.mark.parametrize("name", NAMES)
def test_a_file_is_sent_packed_and_once(api: Http, name: str) -> None:
    path = f"/console/{name}"
    plain = api("GET", path)
    packed = api("GET", path, headers={"Accept-Encoding": "gzip"})
    assert plain.body == (DIRECTORY / name).read_bytes()
    if len(plain.body) >= 1024:
        assert packed.headers["content-encoding"] == "gzip"
        assert gzip.decompress(packed.body) == plain.body
        assert plain.headers["etag"] != packed.headers["etag"], "they differ in their bytes"
    assert "Accept-Encoding" in packed.headers["vary"]
    for reply, given in ((plain, {}), (packed, {"Accept-Encoding": "gzip"})):
        again = api("GET", path, headers={**given, "If-None-Match": reply.headers["etag"]})
        assert (again.status, again.body) == (304, b"")
    head = api("HEAD", path)
    assert (head.status, head.body, head.headers["etag"]) == (200, b"", plain.headers["etag"])


@pytest.mark.parametrize(
    "name", ["none.js", "..", "../keys.py", "%2e%2e%2fkeys.py", "vendor.md", "/", "index.html%00"]
)
def test_nothing_else_is_sent(api: Http, name: str) -> None:
    assert api("GET", f"/console/{name}").code in ("not_found", "invalid_request")


def test_the_page_weighs_little(api: Http) -> None:
    sizes = {n: len(api("GET", f"/console/{n}", headers={"Accept-Encoding": "gzip"}).body)
             for n in NAMES}  # fmt: skip
    print(f"{sum(sizes.values()) / 1024:.1f} KiB compressed in {len(sizes)} files")
    assert sum(sizes.values()) <= PAGE_WEIGHT


def test_modules_import_files_that_exist() -> None:
    found = 0
    for path in DIRECTORY.glob("*.js"):
        if path.name.startswith("vendor-"):
            continue
        text = path.read_text()
        for name in re.findall(r'from "\./([^"]+)"', text):
            found += 1
            assert (DIRECTORY / name).is_file(), f"{path.name} imports {name}"
        assert len(text.splitlines()) <= 400, path.name
        assert "innerHTML" not in text, path.name
        assert "dangerously" not in text, path.name
    assert found > 40


def test_vendored_files_are_those_of_the_note() -> None:
    note = (DIRECTORY / "vendor.md").read_text()
    noted = dict(re.findall(r"\| `(vendor-[\w.-]+)` \|[^\n]*`([0-9a-f]{64})`", note))
    vendored = {p.name for p in DIRECTORY.glob("vendor-*") if p.suffix in (".js", ".css")}
    assert noted.keys() == vendored
    for name, digest in noted.items():
        assert hashlib.sha256((DIRECTORY / name).read_bytes()).hexdigest() == digest, name


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    directory: Path = tmp_path_factory.mktemp("guarded") / "data"
    with opened(directory, {"TOPICS_API_KEYS": "all,one:r:orders|jobs,none:w"}) as server:
        yield server


@pytest.fixture
def anyone(guarded: Server) -> Iterator[Http]:
    client = Http(guarded.port)
    yield client
    client.close()


def test_the_page_needs_no_key_but_its_data_does(anyone: Http) -> None:
    assert anyone("GET", "/console").status == 200
    assert anyone("GET", "/console/app.js").status == 200
    assert anyone("GET", "/v0/key").code == "unauthorized"


def test_a_key_learns_what_it_may_do(anyone: Http) -> None:
    def ask(key: str) -> object:
        reply = anyone("GET", "/v0/key", headers={"Authorization": f"Bearer {key}"})
        return reply.json if reply.status == 200 else reply.code

    assert ask("all") == {"scopes": ["read", "write", "delete", "admin"], "prefixes": []}
    assert ask("one") == {"scopes": ["read"], "prefixes": ["orders", "jobs"]}
    assert ask("none") == "forbidden"
    assert ask("other") == "unauthorized"


def test_without_keys_everything_is_allowed(api: Http) -> None:
    everything = {"scopes": ["read", "write", "delete", "admin"], "prefixes": []}
    assert api("GET", "/v0/key").json == everything


def test_pages_of_other_origins_may_link_to_the_console(api: Http) -> None:
    # Its files tell nothing; what it asks the server for is checked as before.
    headers = {"Sec-Fetch-Site": "cross-site", "Referer": "https://wiki.example.com/"}
    assert api("GET", "/console", headers=headers).status == 200
    assert api("GET", "/v0/key", headers=headers).code == "forbidden"
