"""The bytes that streams pull in one turn of the loop."""

from __future__ import annotations

import asyncio
from collections import Counter

from topics_engine.asgi.bridge import MIN_PULL, PULL_BYTES, TURN_BYTES, TurnBudget


def test_streams_take_turns_in_order() -> None:
    async def go() -> None:
        turn, pulls = 0, Counter[int]()
        order: list[int] = []
        budget = TurnBudget(asyncio.get_running_loop())

        async def stream(name: int) -> None:
            for _ in range(10):
                await budget.wait()
                budget.take(PULL_BYTES)
                pulls[turn] += 1
                order.append(name)

        streams = [asyncio.ensure_future(stream(name)) for name in range(100)]
        while not all(each.done() for each in streams):
            await asyncio.sleep(0)
            turn += 1
            assert turn < 1000
        assert sum(pulls.values()) == 1000
        # The budget is renewed once a turn, wherever the turn is cut.
        assert max(pulls.values()) <= 2 * TURN_BYTES // PULL_BYTES
        # A stream that has pulled a whole budget waits behind the others.
        assert set(order[160:320]) != {order[160]}
        assert max(Counter(order[:500]).values()) <= 16

    asyncio.run(go())


def test_small_pulls_and_cancelled_streams_do_not_stop_the_others() -> None:
    async def go() -> None:
        budget = TurnBudget(asyncio.get_running_loop())
        done = 0

        async def stream() -> None:
            nonlocal done
            await budget.wait()
            budget.take(1)
            done += 1

        streams = [asyncio.ensure_future(stream()) for _ in range(3 * TURN_BYTES // MIN_PULL)]
        await asyncio.sleep(0)
        waiting = [each for each in streams if not each.done()]
        assert 0 < len(waiting) < len(streams)
        for each in waiting[::2]:
            each.cancel()
        async with asyncio.timeout(60):
            await asyncio.gather(*streams, return_exceptions=True)
        assert done == len(streams) - len(waiting[::2])
        # A turn begins with the whole budget again.
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await budget.wait()

    asyncio.run(go())
