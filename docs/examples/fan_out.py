"""Fan-out: one topic of events, copies of a part of them, and watchers.

A shop writes its orders once. Routers copy them: all orders to an archive, European orders to the
team that ships there. Each destination is a topic with its own seqs, retention and readers.

    python docs/examples/fan_out.py [DIRECTORY | URL]
"""

from __future__ import annotations

import threading

from common import opened, run

import topics_engine as te

ORDERS = 100


def follow(watch: te.Watch, count: int, seen: list[te.Record]) -> None:
    """Receives records until there are `count`."""
    for item in watch:
        assert isinstance(item, te.Record), item
        seen.append(item)
        if len(seen) == count:
            return


def main(where: str) -> None:
    with opened(where) as db:
        orders = db.topic("orders")
        orders.create()
        db.router("to-archive", source="orders", dest="archive")
        db.router("to-europe", source="orders", dest="shipping.eu", tag="eu:*")

        seen: dict[str, list[te.Record]] = {"archive": [], "shipping.eu": []}
        expected = {"archive": ORDERS, "shipping.eu": ORDERS // 2}
        watches, threads = [], []
        for name, records in seen.items():
            watch = db.watch({name: te.EARLIEST})
            thread = threading.Thread(target=follow, args=(watch, expected[name], records))
            thread.start()
            watches.append(watch)
            threads.append(thread)

        for n in range(ORDERS):
            place = "eu:de" if n % 2 else "us:ca"
            orders.append({"order": n, "price": 5 * n}, tag=place)
        for thread, watch in zip(threads, watches, strict=True):
            thread.join()
            watch.close()

        assert [r.data["order"] for r in seen["archive"]] == list(range(ORDERS))
        assert [r.data["order"] for r in seen["shipping.eu"]] == list(range(1, ORDERS, 2))
        assert [r.seq for r in seen["shipping.eu"]] == list(range(1, ORDERS // 2 + 1))
        for name, records in seen.items():
            total = sum(r.data["price"] for r in records)
            print(f"{name}: {len(records)} orders worth {total}")


if __name__ == "__main__":
    run(main)
