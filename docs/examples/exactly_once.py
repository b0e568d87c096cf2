"""Consume, process, produce: exactly once, although the worker is killed.

A worker reads orders with a durable consumer and claims jobs. For each order it appends an invoice,
moves the cursor and acks the job in one transaction. It is killed repeatedly in the middle of its
work and started again. In the end every order has one invoice, in order, and no job is left.

    python docs/examples/exactly_once.py [DIRECTORY | URL]
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from common import opened, run

import topics_engine as te

ORDERS = 120
KILLS = 5
PER_LIFE = 15


def work(where: str) -> None:
    """Runs one worker process: prints a line for each invoice, until it is killed."""
    with opened(where) as db:
        orders = db.topic("orders").consumer("billing")
        mails = db.queue("mails")
        while len(batch := orders.read(max_records=1)):
            # Jobs that a killed worker had leased can be claimed again when the lease has expired.
            (job,) = mails.claim("worker", lease=1, wait=30)
            with db.transaction() as tx:
                for item in batch:
                    assert isinstance(item, te.Record)
                    invoice = {"order": item.data["id"], "mail": job.data["id"]}
                    tx.append("invoices", invoice)
                tx.commit(orders, batch.cursor)
                tx.ack(job)
            print("invoice", flush=True)


def main(where: str) -> None:
    with opened(where) as db:
        db.topic("orders").append([{"id": n} for n in range(ORDERS)])
        db.queue("mails").append([{"id": n} for n in range(ORDERS)])
    for life in range(KILLS + 1):
        command = [sys.executable, __file__, where, "--worker"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as worker:
            assert worker.stdout is not None
            for count, _ in enumerate(worker.stdout, 1):
                if life < KILLS and count == PER_LIFE:
                    os.kill(worker.pid, signal.SIGKILL)
    with opened(where) as db:
        invoices = [r.data for r in db.topic("invoices").read() if isinstance(r, te.Record)]
        assert [i["order"] for i in invoices] == list(range(ORDERS))
        assert sorted(i["mail"] for i in invoices) == list(range(ORDERS))
        assert db.topic("mails").state().count == 0
    print(f"{ORDERS} orders, {len(invoices)} invoices, by {KILLS + 1} workers")


if __name__ == "__main__":
    if "--worker" in sys.argv:
        work(sys.argv[1])
    else:
        run(main)
