"""The feed: both topics grow as the year passes, at the pace of the job."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
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


class Feed(threading.Thread):
    """Appends one simulated day at a time, and continues when the job has processed all but
    `lead` of the appended rows. So only the pace of the job determines the number of available
    rows."""

    def __init__(
        self,
        url: str,
        rows: dict[str, list[Row]],
        processed: Callable[[], int],
        lead: int,
        record: Callable[[Row], dict[str, Any]] = plain,
    ) -> None:
        super().__init__(daemon=True)
        self._client = Client(Connection(url, None, None, 60.0))
        self._rows = rows
        self._processed = processed
        self._lead = lead
        self._record = record
        self.fed = 0
        """The number of rows on the server."""
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            at = dict.fromkeys(self._rows, 0)
            day = min(rows[0].arrives for rows in self._rows.values())
            while any(at[topic] < len(rows) for topic, rows in self._rows.items()):
                while self.fed - self._processed() > self._lead:
                    time.sleep(0.02)
                day += timedelta(days=1)
                for topic, rows in self._rows.items():
                    first = at[topic]
                    while at[topic] < len(rows) and rows[at[topic]].arrives < day:
                        at[topic] += 1
                    self._append(topic, rows[first : at[topic]], first)
        except BaseException as e:
            self.error = e

    def _append(self, topic: str, rows: list[Row], first: int) -> None:
        for i in range(0, len(rows), BATCH):
            records = [self._record(row) for row in rows[i : i + BATCH]]
            body = {"records": records, "idempotency_key": f"{topic}-{first + i}"}
            self._client.call("POST", f"/v0/topics/{topic}", body)
            self.fed += len(records)
