"""Credentials and addresses of object stores in S3: the environment, profiles, botocore."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple

import pytest

import topics_engine as te
from support.processes import child
from support.waiting import until
from topics_engine import _core
from topics_engine.cli import main

SECRET = "hidden-secret"
SCOPE = re.compile(r"Credential=(?P<key>[^/]+)/\d+/(?P<region>[^/]+)/s3/")

SSO = """
    [profile sso]
    sso_session = company
    region = eu-north-1
"""


class Signed(NamedTuple):
    """What a request was signed with."""

    key: str
    region: str
    token: str | None


class Recorder(ThreadingHTTPServer):
    """Answers every request with a status, 403 at first, and records what it was signed with."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.signed: list[Signed] = []
        self.status: Callable[[Signed], int] = lambda _: 403

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    @property
    def url(self) -> str:
        return f"s3://b/p?endpoint={self.address}"

    def used(self, url: str | None = None) -> Signed:
        """What a store signs with that is opened now."""
        self.signed.clear()
        _core.probe_remote(url or self.url, 0)
        (found,) = set(self.signed)
        return found


class Handler(BaseHTTPRequestHandler):
    server: Recorder

    def _answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        found = SCOPE.search(self.headers.get("Authorization", ""))
        assert found, "every request is signed"
        signed = Signed(found["key"], found["region"], self.headers.get("x-amz-security-token"))
        self.server.signed.append(signed)
        self.send_response(self.server.status(signed))
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_GET(self) -> None:
        self._answer()

    def do_PUT(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def do_DELETE(self) -> None:
        self._answer()

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Recorder]:
    listening = Recorder()
    thread = threading.Thread(target=listening.serve_forever)
    thread.start()
    yield listening
    listening.shutdown()
    thread.join()
    listening.server_close()


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home without profiles, on a machine that has no credentials."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".aws").mkdir()
    return tmp_path


@pytest.fixture
def no_botocore(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "botocore", None)


def write(file: Path, text: str) -> None:
    file.write_text(textwrap.dedent(text))


def credentials(*keys: str) -> str:
    """Fields of a profile: the id of a key, its secret, and a session token if there is one."""
    names = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")
    return "\n".join(f"{name} = {value}" for name, value in zip(names, keys, strict=False))


def fake_botocore(folder: Path, body: str) -> Path:
    """A botocore whose credentials of the call `n` (from 1) are what `body` makes of it."""
    package = folder / "fake" / "botocore"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    write(
        package / "session.py",
        """
        import datetime, threading, types

        calls = []

        def lasting(n, seconds, profile):
            now = datetime.datetime.now(datetime.timezone.utc)
            keys = types.SimpleNamespace(access_key=f"AK{n}", secret_key="hidden", token=profile)
            end = None if seconds is None else now + datetime.timedelta(seconds=seconds)
            return types.SimpleNamespace(get_frozen_credentials=lambda: keys, _expiry_time=end)

        class Session:
            def __init__(self, profile):
                self.profile = profile

            def get_credentials(self):
                calls.append(self.profile)
                return answer(len(calls), self.profile)

        def answer(n, profile):
        """,
    )
    with (package / "session.py").open("a") as file:
        file.write(textwrap.indent(textwrap.dedent(body), "    "))
    return package.parent


@pytest.fixture
def botocore(home: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Puts a fake botocore on the path of this process."""

    def put(body: str) -> None:
        monkeypatch.syspath_prepend(fake_botocore(home, body))
        for name in ("botocore", "botocore.session"):
            monkeypatch.delitem(sys.modules, name, raising=False)

    return put


def test_the_default_profile(server: Recorder, home: Path) -> None:
    write(home / ".aws/credentials", f"[default]\n{credentials('AKD', SECRET)}")
    assert server.used() == ("AKD", "us-east-1", None)
    write(home / ".aws/config", "[default]\nregion = eu-west-1\ns3 =\n  max_queue_size = 1\n")
    assert server.used() == ("AKD", "eu-west-1", None)


def test_a_named_profile_in_other_files(
    server: Recorder, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_PROFILE", "at work")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(home / "c"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "~/s")
    write(home / ".aws/credentials", f"[at work]\n{credentials('AKX', SECRET)}")
    write(home / "c", f'[profile "at work"]\nregion = r-1\n{credentials("AKC", SECRET, "token")}')
    assert server.used() == ("AKC", "r-1", "token")
    write(home / "s", f"[at work]\n{credentials('AKS', SECRET)}")
    assert server.used() == ("AKS", "r-1", None), "the file of credentials is stronger"


def test_the_order(server: Recorder, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key, the named profile, the web identity, the default profile, the container."""
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "/none")
    monkeypatch.setenv("AWS_PROFILE", "p")
    named, default = credentials("AKP", SECRET), credentials("AKD", SECRET)
    write(home / ".aws/credentials", f"[p]\n{named}\n[default]\n{default}")
    write(home / ".aws/config", "[profile p]\nregion = of-the-profile\n[profile none]")
    assert server.used() == ("AKP", "of-the-profile", None)
    monkeypatch.setenv("AWS_REGION", "of-the-environment")
    assert server.used().region == "of-the-environment"
    assert server.used(f"{server.url}&region=of-the-url").region == "of-the-url"

    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(home / "missing"))
    monkeypatch.setenv("AWS_ROLE_ARN", "arn:aws:iam::1:role/r")
    assert server.used().key == "AKP"
    monkeypatch.setenv("AWS_PROFILE", "none")
    assert "no credentials from the web identity" in probed(server.url)
    monkeypatch.setenv("AWS_PROFILE", "")
    assert "no credentials from the web identity" in probed(server.url)
    monkeypatch.delenv("AWS_ROLE_ARN")
    assert server.used().key == "AKD"

    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_SESSION_TOKEN", "")
    monkeypatch.setenv("AWS_PROFILE", "missing")
    assert server.used() == ("AKE", "of-the-environment", None)


def test_an_empty_variable_is_none(
    server: Recorder, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_REGION"):
        monkeypatch.setenv(name, "")
    write(home / ".aws/credentials", f"[default]\n{credentials('AKD', SECRET)}")
    assert server.used() == ("AKD", "us-east-1", None)


def test_the_endpoint(server: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the URL, else of the environment for S3, else for all services."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.address)
    assert server.used("s3://b/p").key == "AKE"
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", server.address)
    assert server.used("s3://b/p").key == "AKE"
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9")
    assert server.used().key == "AKE"


def probed(url: str) -> str:
    """What a probe says of its first request."""
    found = json.loads(_core.probe_remote(url, 0))
    detail: str = found["features"][0]["detail"]
    return detail


def test_no_credentials(server: Recorder, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(home / ".aws/config", "[default]\nregion = eu-west-1")
    said = probed(server.url)
    assert "no credentials, and AWS_EC2_METADATA_DISABLED" in said
    assert "Set AWS_ACCESS_KEY_ID" in said
    monkeypatch.delenv("AWS_EC2_METADATA_DISABLED")
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", "http://127.0.0.1:9")
    said = probed(server.url)
    assert "no credentials from the environment, a profile or the instance" in said
    assert "127.0.0.1:9" in said
    assert "Set AWS_ACCESS_KEY_ID" in said
    assert server.signed == []


@pytest.mark.parametrize(
    ("config", "profile", "said"),
    [
        ("[profile other]\nregion = r", "p", 'AWS_PROFILE names the profile "p", .* have other: '),
        ("", "p", "which have no profile: name another one, or unset AWS_PROFILE"),
        ("[p]\nregion = r", "p", 'AWS_PROFILE names the profile "p"'),
        (
            f"[profile p]\naws_secret_access_key = {SECRET}",
            "p",
            "has aws_secret_access_key without aws_access_key_id: add it",
        ),
        (f"[default]\n{SECRET}", "", "line 2 of ~/.aws/config is not of the form"),
        (f"{SECRET}", "", "line 1 of ~/.aws/config is not of the form"),
        (SSO, "sso", "come from SSO, which needs botocore: run `pip install botocore`, or"),
        ("[default]\nrole_arn = r\nsource_profile = x", "", "come from a role, which needs"),
        ("[profile p q]\ncredential_process = x", "p q", "a process, .* --profile 'p q' --format"),
    ],
)
@pytest.mark.usefixtures("no_botocore")
def test_a_profile_that_cannot_be_used(
    server: Recorder,
    home: Path,
    data_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    config: str,
    profile: str,
    said: str,
) -> None:
    write(home / ".aws/config", config)
    monkeypatch.setenv("AWS_PROFILE", profile)
    with pytest.raises(te.InvalidRequest, match=said) as caught:
        te.open(data_dir, remote_url=server.url)
    assert str(caught.value).startswith("remote_url: ")
    assert SECRET not in str(caught.value)
    with pytest.raises(te.InvalidRequest, match=said):
        te.open(server.url, read_only=True)
    with pytest.raises(te.InvalidRequest, match=said):
        te.restore(server.url, data_dir)
    with te.open(data_dir) as db, pytest.raises(te.InvalidRequest, match=said):
        db.backup(server.url)
    assert server.signed == []


def test_a_file_that_hangs_or_is_too_long_or_cannot_be_read(
    server: Recorder, home: Path, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / ".aws/config").mkdir()
    with pytest.raises(te.InvalidRequest, match=r"~/.aws/config cannot be read: .*AWS_CONFIG_FILE"):
        te.open(data_dir, remote_url=server.url)
    (home / "long").write_text("#" * (1 << 20) + "\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(home / "long"))
    with pytest.raises(te.InvalidRequest, match="long cannot be read: it has more than 1048576"):
        te.open(data_dir, remote_url=server.url)
    # Its reader waits for a writer.
    os.mkfifo(home / "pipe")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(home / "pipe"))
    try:
        with pytest.raises(te.InvalidRequest, match="pipe cannot be read: no answer within 2 s"):
            te.open(data_dir, remote_url=server.url)
    finally:
        os.close(os.open(home / "pipe", os.O_WRONLY | os.O_NONBLOCK))


def test_botocore_has_the_credentials_of_a_role(
    server: Recorder,
    home: Path,
    data_dir: Path,
    botocore: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write(home / ".aws/config", SSO)
    monkeypatch.setenv("AWS_PROFILE", "sso")
    botocore("return lasting(n, None, profile)")
    assert server.used() == ("AK1", "eu-north-1", "sso"), "the fake has the profile as the token"
    server.signed.clear()
    with te.open(data_dir, remote_url=server.url):
        until(lambda: bool(server.signed))
    assert set(server.signed) == {("AK2", "eu-north-1", "sso")}


def pipes() -> set[str]:
    """The pipes that this process has open (Linux)."""
    found = set()
    for fd in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the one of the listing
            found.add(str(fd.readlink()))
    return {target for target in found if target.startswith("pipe:")}


def test_the_thread_of_credentials_ends_with_its_store(
    server: Recorder, home: Path, botocore: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(home / ".aws/config", SSO)
    monkeypatch.setenv("AWS_PROFILE", "sso")
    botocore("return lasting(n, None, profile)")
    before = pipes()
    server.used()
    until(lambda: all(t.name != "topics-credentials" for t in threading.enumerate()))
    assert pipes() <= before


def test_credentials_are_renewed(
    server: Recorder, home: Path, botocore: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One store is asked for until it has other credentials; nothing else ends its requests."""
    write(home / ".aws/config", SSO)
    monkeypatch.setenv("AWS_PROFILE", "sso")
    botocore("return lasting(n, 1 if n == 1 else 3600, profile)")
    server.status = lambda signed: 503 if signed.key == "AK1" else 404
    assert _core.remote_status(server.url) == b"null"
    assert server.signed[0].key == "AK1"
    assert server.signed[-1].key == "AK2"


def test_what_botocore_says_is_said(
    server: Recorder,
    home: Path,
    botocore: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write(home / ".aws/config", SSO)
    monkeypatch.setenv("AWS_PROFILE", "sso")
    botocore("if n == 1: raise ValueError('the session is over.')")
    said = probed(server.url)
    assert 'no credentials from the profile "sso": ValueError: the session is over. ' in said
    assert 'aws sts get-caller-identity --profile "sso"`, and log in' in said
    assert "botocore finds none" in probed(server.url)
    assert server.signed == []
    assert capsys.readouterr().err == ""


def test_secrets_are_not_shown(
    server: Recorder,
    home: Path,
    data_dir: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write(home / ".aws/credentials", f"[default]\n{credentials('AKD', SECRET, 'hidden-token')}")
    monkeypatch.setenv("TOPICS_REMOTE_URL", server.url)
    with caplog.at_level("DEBUG"), te.open(data_dir, remote_url=server.url) as db:
        until(lambda: db.metrics()["remote_state"] not in ("starting", "ok"))
    main(["--data-dir", str(data_dir), "config"])
    main(["doctor", "--remote"])
    captured = capsys.readouterr()
    shown = captured.out + captured.err + caplog.text
    assert server.url in captured.out
    assert "hidden" not in shown


HANGS = """
    import sys, threading, time
    from pathlib import Path
    import topics_engine as te

    sys.path.insert(0, sys.argv[3])
    with te.open(sys.argv[1], remote_url=sys.argv[2]) as db:
        db.topic("t").append(1, sync=True)
        while not Path(sys.argv[4]).exists():
            time.sleep(0.02)
        names = {thread.name for thread in threading.enumerate()}
        assert "topics-credentials" in names, names
    print("closed")
"""


@pytest.mark.parametrize("n", [1, 2], ids=["first", "renewal"])
def test_credentials_that_hang_do_not_hold_a_close(
    server: Recorder, home: Path, data_dir: Path, n: int
) -> None:
    """The end of the process is not held either."""
    write(home / ".aws/config", SSO)
    server.status = lambda _: 503
    body = f"""
        if n < {n}:
            return lasting(n, 1, profile)
        open({str(home / "hangs")!r}, "w").close()
        threading.Event().wait()
    """
    fake = fake_botocore(home, body)
    env = os.environ | {"AWS_PROFILE": "sso"}
    command = [sys.executable, "-c", textwrap.dedent(HANGS), data_dir, server.url, fake]
    with child([*command, home / "hangs"], env=env) as process:
        out, _ = process.communicate()
        assert (process.returncode, out) == (0, "closed\n")
    assert bool(server.signed) is (n == 2)


LOADS = """
    import sys
    import topics_engine as te

    with te.open(sys.argv[1], remote_url=sys.argv[2]):
        pass
    print(*{"configparser", "topics_engine.profiles"} & set(sys.modules))
"""


@pytest.mark.parametrize("given", [True, False], ids=["keys", "no keys"])
def test_profiles_are_read_without_a_key_only(
    server: Recorder, data_dir: Path, given: bool
) -> None:
    keys = {"AWS_ACCESS_KEY_ID": "AKE", "AWS_SECRET_ACCESS_KEY": SECRET} if given else {}
    command = [sys.executable, "-c", textwrap.dedent(LOADS), data_dir, server.url]
    with child(command, env=os.environ | keys) as process:
        out, _ = process.communicate()
        assert process.returncode == 0
    assert bool(out.strip()) is not given
