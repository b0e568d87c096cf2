"""An event-sourced aggregate: an account whose state is the sum of its events.

To decide something, a thread reads the events, decides, and appends the result with `expect_head`.
The append is refused if another thread has appended in the meantime; then the thread decides again
from the new state. Eight threads withdraw concurrently; the account is never overdrawn.

    python docs/examples/aggregate.py [DIRECTORY | URL]
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

from common import opened, run

import topics_engine as te

THREADS = 8
ATTEMPTS = 20
DEPOSIT = 1000
WITHDRAWAL = 9


@dataclass
class Account:
    """The state of an account after its events."""

    balance: int = 0
    head: int = 0

    def catch_up(self, events: te.Topic) -> None:
        for item in events.read(after=self.head):
            assert isinstance(item, te.Record), item
            self.balance += item.data["amount"]
            self.head = item.seq


def withdraw(events: te.Topic, account: Account, amount: int) -> int:
    """Withdraws unless that overdraws the account; returns how often it decided again, or -1."""
    again = 0
    while True:
        account.catch_up(events)
        if account.balance < amount:
            return -1
        try:
            events.append({"what": "withdrawn", "amount": -amount}, expect_head=account.head)
        except te.Conflict:
            again += 1
        else:
            return again


def main(where: str) -> None:
    with opened(where) as db:
        events = db.topic("account.4711", durability="fsync")
        events.append({"what": "deposited", "amount": DEPOSIT}, expect_head=0)
        outcomes: list[int] = []

        def customer() -> None:
            account = Account()
            outcomes.extend(withdraw(events, account, WITHDRAWAL) for _ in range(ATTEMPTS))

        threads = [threading.Thread(target=customer) for _ in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        account = Account()
        account.catch_up(events)
        done = sum(outcome >= 0 for outcome in outcomes)
        again = sum(max(outcome, 0) for outcome in outcomes)
        refused = len(outcomes) - done
        left = account.balance
        print(f"{done} withdrawals, {refused} refused, {again} decided anew: {left} left")
        assert left == DEPOSIT - done * WITHDRAWAL
        assert 0 <= left < WITHDRAWAL


if __name__ == "__main__":
    run(main)
