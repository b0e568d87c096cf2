"""The feed: both topics grow as time passes, at the pace of the job."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

from pyspark_topics.client import Client
from pyspark_topics.options import Connection

from .dataset import Row

BATCH = 5_000
"""Maximum records of one write."""


def plain(row: Row) -> dict[str, Any]:
    """The record of a row: its text is JSON."""
    return {"data": json.loads(row.text)}


def append(
    client: Client, topic: str, records: Sequence[dict[str, Any]], first: int = 0
) -> Iterator[int]:
    """Appends records, the first of them after `first` others; yields the size of each write, once
    it is done. A repeated write does nothing."""
    for at in range(0, len(records), BATCH):
        batch = records[at : at + BATCH]
        body = {"records": batch, "idempotency_key": f"{topic}-{first + at}"}
        client.call("POST", f"/v0/topics/{topic}", body)
        yield len(batch)


class Feed(threading.Thread):
    """Appends one simulated day at a time, and continues when the job has processed all but
    `lead` of the appended rows. So only the pace of the job determines the number of available
    rows. The first rows of each topic, as many as `archived` says, are there already."""

    def __init__(
        self,
        url: str,
        rows: dict[str, list[Row]],
        processed: Callable[[], int],
        lead: int,
        record: Callable[[Row], dict[str, Any]] = plain,
        archived: Mapping[str, int] | None = None,
    ) -> None:
        super().__init__(daemon=True)
        self._client = Client(Connection(url, None, None, 60.0))
        self._rows = rows
        self._processed = processed
        self._lead = lead
        self._record = record
        self._archived = archived or dict.fromkeys(rows, 0)
        self.fed = sum(self._archived.values())
        """The number of rows on the server."""
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            at = dict(self._archived)
            day = min(rows[at[topic]].arrives for topic, rows in self._rows.items())
            while any(at[topic] < len(rows) for topic, rows in self._rows.items()):
                while self.fed - self._processed() > self._lead:
                    time.sleep(0.02)
                day += timedelta(days=1)
                for topic, rows in self._rows.items():
                    first = at[topic]
                    while at[topic] < len(rows) and rows[at[topic]].arrives < day:
                        at[topic] += 1
                    records = [self._record(row) for row in rows[first : at[topic]]]
                    for count in append(self._client, topic, records, first):
                        self.fed += count
        except BaseException as e:
            self.error = e
