"""The handler of signals goes before the server's own, and leaves it as it was."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator

import pytest

from support.asgi_driver import run
from topics_engine.asgi.signals import ShutdownSignals


@pytest.fixture
def server_handler() -> Iterator[list[int]]:
    """A server's handler of SIGTERM; the signals that it got."""
    got: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: got.append(number))
    yield got
    signal.signal(signal.SIGTERM, before)


def test_shutdowns_begin_and_the_servers_handler_runs(server_handler: list[int]) -> None:
    own = signal.getsignal(signal.SIGTERM)

    async def go() -> None:
        signals, begun = ShutdownSignals(), [asyncio.Event(), asyncio.Event()]
        for event in begun:
            signals.watch(event, event.set)
        os.kill(os.getpid(), signal.SIGTERM)
        for event in begun:
            await event.wait()
        assert server_handler == [signal.SIGTERM]
        signals.forget(begun[0])
        assert signal.getsignal(signal.SIGTERM) is not own
        signals.forget(begun[1])
        assert signal.getsignal(signal.SIGTERM) is own

    run(go())


def test_a_handler_that_came_later_stays_and_still_reaches_the_server(
    server_handler: list[int],
) -> None:
    async def go() -> None:
        signals, first, second = ShutdownSignals(), asyncio.Event(), asyncio.Event()
        signals.watch(first, first.set)
        inner = signal.getsignal(signal.SIGTERM)
        later: list[int] = []

        def over(number: int, frame: object) -> None:
            later.append(number)
            inner(number, frame)  # type: ignore[operator, arg-type]

        signal.signal(signal.SIGTERM, over)
        signals.forget(first)
        assert signal.getsignal(signal.SIGTERM) is over
        # Over the later one: a chain, no circle.
        signals.watch(second, second.set)
        os.kill(os.getpid(), signal.SIGTERM)
        await second.wait()
        assert (later, server_handler) == ([signal.SIGTERM], [signal.SIGTERM])
        assert not first.is_set()
        signals.forget(second)

    run(go())


def test_a_thread_and_a_signal_without_a_handler_are_left_alone(server_handler: list[int]) -> None:
    own = signal.getsignal(signal.SIGTERM)

    async def watch() -> None:
        signals = ShutdownSignals()
        signals.watch(signals, lambda: None)

    async def go() -> None:
        await asyncio.to_thread(lambda: asyncio.run(watch()))
        assert signal.getsignal(signal.SIGTERM) is own
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        await watch()
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL

    run(go())
