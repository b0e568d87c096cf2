"""The audit log: the address of a client, and the limit of records about requests without a key."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

import pytest

from topics_engine.asgi.audit import UNAUTHORIZED_LINES, WINDOW_SECONDS, AuditLog, audit
from topics_engine.asgi.messages import Request
from topics_engine.asgi.proxies import TrustedProxies
from topics_engine.errors import InvalidRequest


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    before = audit.level
    with caplog.at_level(logging.INFO, audit.name):
        yield caplog
    audit.setLevel(before)


def refused(status: int) -> Request:
    async def receive() -> dict[str, object]:
        raise AssertionError

    scope = {"type": "http", "method": "GET", "path": "/v0/topics", "headers": []}
    request = Request(scope, receive)
    request.status = status
    return request


def statuses(told: pytest.LogCaptureFixture) -> list[int]:
    """The status of each record; of a count, the negative number of suppressed records."""
    fields = [record.__dict__["fields"] for record in told.records]
    return [-f["suppressed"] if "suppressed" in f else f["status"] for f in fields]


def test_refusals_without_a_key_are_limited_and_counted(told: pytest.LogCaptureFixture) -> None:
    now = 1000.0

    async def run() -> None:
        nonlocal now
        log = AuditLog(clock=lambda: now)
        for _ in range(UNAUTHORIZED_LINES + 5):
            log.record(refused(401))
        assert statuses(told) == [401] * UNAUTHORIZED_LINES
        log.record(refused(403))
        assert statuses(told)[-1] == 403, "a key's refusals are not limited"
        # The next window begins with the count of the one before.
        now += WINDOW_SECONDS
        log.record(refused(401))
        assert statuses(told)[-2:] == [-5, 401]
        for _ in range(UNAUTHORIZED_LINES + 1):
            log.record(refused(401))
        log.close()
        assert statuses(told)[-2:] == [401, -2]
        log.close()
        assert statuses(told)[-2:] == [401, -2], "nothing is counted twice"

    asyncio.run(run())


def test_the_count_is_written_without_another_request(
    told: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("topics_engine.asgi.audit.WINDOW_SECONDS", 0.05)

    async def run() -> None:
        log = AuditLog(clock=lambda: 1000.0)
        for _ in range(UNAUTHORIZED_LINES + 3):
            log.record(refused(401))
        while statuses(told)[-1] == 401:
            await asyncio.sleep(0.01)
        assert statuses(told)[-1] == -3

    asyncio.run(run())


@pytest.mark.parametrize(
    ("proxies", "peer", "headers", "client"),
    [
        ("", "127.0.0.1", ["6.6.6.6"], "127.0.0.1"),
        ("10.0.0.1", "127.0.0.1", ["6.6.6.6"], "127.0.0.1"),
        ("127.0.0.1", "127.0.0.1", [], "127.0.0.1"),
        ("127.0.0.1", "127.0.0.1", ["6.6.6.6"], "6.6.6.6"),
        # A client may send the header itself; a proxy appends to it.
        ("127.0.0.1", "127.0.0.1", ["6.6.6.6, 7.7.7.7"], "7.7.7.7"),
        ("127.0.0.1", "127.0.0.1", ["6.6.6.6", "7.7.7.7"], "7.7.7.7"),
        ("127.0.0.0/8, 10.0.0.0/8", "127.0.0.2", ["6.6.6.6, 10.1.2.3"], "6.6.6.6"),
        ("10.0.0.0/8", "10.0.0.1", ["10.0.0.2, 10.0.0.3"], "10.0.0.2"),
        ("127.0.0.1", "127.0.0.1", ["6.6.6.6:4711"], "6.6.6.6"),
        ("::1", "::1", ["[2001:db8::1]:4711"], "2001:db8::1"),
        ("::1", "::1", ["2001:DB8::1"], "2001:db8::1"),
        ("10.0.0.1", "::ffff:10.0.0.1", ["6.6.6.6"], "6.6.6.6"),
        # Text that is no address never gets into a log.
        ("127.0.0.1", "127.0.0.1", ["6.6.6.6, \x1b[31mred"], "127.0.0.1"),
        ("127.0.0.1", "127.0.0.1", ["6.6.6.6, unknown, 127.0.0.1"], "127.0.0.1"),
        ("127.0.0.1", "127.0.0.1", ["x" * 5000], "127.0.0.1"),
        ("127.0.0.1", "127.0.0.1", [""], "127.0.0.1"),
        ("127.0.0.1", None, ["6.6.6.6"], None),
    ],
)
def test_the_client_is_the_peer_or_what_a_trusted_proxy_says(
    proxies: str, peer: str | None, headers: list[str], client: str | None
) -> None:
    scope = {
        "client": peer and (peer, 1234),
        "headers": [(b"x-forwarded-for", value.encode("latin-1")) for value in headers],
    }
    TrustedProxies(proxies).resolve(scope)
    found = scope["client"]
    assert (found and found[0]) == client


@pytest.mark.parametrize("proxies", ["*", "localhost", "10.0.0.1/8", "10.0.0.1,", "1.2.3.4:80"])
def test_a_proxy_that_is_no_address_is_refused(proxies: str) -> None:
    with pytest.raises(InvalidRequest, match="trusted_proxies"):
        TrustedProxies(proxies)
