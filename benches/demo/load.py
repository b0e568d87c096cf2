"""The loaders: connections that send batches until each is acked, across kills of the server."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from .flights import Batch

RETRY_SECONDS = 120.0


@dataclass(slots=True)
class Ack:
    """The server's answer to a batch; `tries` is the number of requests that it took."""

    batch: Batch
    first_seq: int
    last_seq: int
    deduped: bool
    tries: int
    fsync_ms: float
    at: float


@dataclass(slots=True)
class Journal:
    """The client's own record of the acks. Guarded by `lock`."""

    lock: threading.Condition = field(default_factory=threading.Condition)
    acks: dict[int, Ack] = field(default_factory=dict)
    in_flight: set[int] = field(default_factory=set)
    # Batches whose request was sent and not answered, since the last kill.
    in_doubt: set[int] = field(default_factory=set)
    refused: list[str] = field(default_factory=list)


class Loaders:
    """`connections` threads that share one queue of batches.

    `ceiling` limits the number of started batches, so that the load does not end before all kills.
    """

    def __init__(self, port: Callable[[], int], batches: list[Batch], connections: int) -> None:
        self.journal = Journal()
        self.ceiling = 0
        self._port = port
        self._queue = deque(batches)
        self._begun = 0
        self._failed = False
        self._threads = [
            threading.Thread(target=self._run, name=f"loader-{n}", daemon=True)
            for n in range(connections)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def alive(self) -> bool:
        return any(thread.is_alive() for thread in self._threads)

    def begun_all(self) -> bool:
        """Whether every batch has been started, or the load stops. Under the journal's lock."""
        return not self._queue

    def raise_ceiling(self, to: int) -> None:
        """Allows this total number of started batches. Under the journal's lock."""
        self.ceiling = max(self.ceiling, to)
        self.journal.lock.notify_all()

    def at_ceiling(self) -> bool:
        """Whether only the ceiling holds the load back. Under the journal's lock."""
        return self._begun >= self.ceiling

    def stop(self, reason: str) -> None:
        """Ends the load early; queued batches are not sent."""
        with self.journal.lock:
            self.journal.refused.append(reason)
            self._failed = True
            self.journal.lock.notify_all()

    def _take(self) -> Batch | None:
        with self.journal.lock:
            while self._queue and self._begun >= self.ceiling and not self._failed:
                self.journal.lock.wait()
            if not self._queue or self._failed:
                return None
            self._begun += 1
            return self._queue.popleft()

    def _run(self) -> None:
        connection: http.client.HTTPConnection | None = None
        while (batch := self._take()) is not None:
            body = batch.body()
            deadline = time.monotonic() + RETRY_SECONDS
            tries = 0
            while not self._failed:
                tries += 1
                if connection is None:
                    connection = http.client.HTTPConnection("127.0.0.1", self._port(), timeout=30)
                if self._send(connection, batch, body, tries):
                    break
                if connection.sock is None:
                    connection = None
                if time.monotonic() > deadline:
                    self.stop(f"batch {batch.number} was not acked in {RETRY_SECONDS:g} s")
                time.sleep(0.01)
        if connection is not None:
            connection.close()

    def _send(
        self, connection: http.client.HTTPConnection, batch: Batch, body: bytes, tries: int
    ) -> bool:
        """Sends one request; true if the batch needs no further one."""
        journal = self.journal
        sent = False
        try:
            if connection.sock is None:
                connection.connect()
            with journal.lock:
                journal.in_flight.add(batch.number)
                journal.lock.notify_all()
            sent = True
            headers = {"Content-Type": "application/json"}
            connection.request("POST", f"/v0/topics/{batch.topic}?return_seqs=false", body, headers)
            response = connection.getresponse()
            answer = response.read()
        except (OSError, http.client.HTTPException):
            connection.close()
            with journal.lock:
                journal.in_flight.discard(batch.number)
                if sent:
                    journal.in_doubt.add(batch.number)
            return False
        now = time.monotonic()
        with journal.lock:
            journal.in_flight.discard(batch.number)
            if response.status in (200, 201):
                said = json.loads(answer)
                fsync = said.get("performance", {}).get("fsync_ms", 0.0)
                journal.acks[batch.number] = Ack(
                    batch, said["first_seq"], said["last_seq"], said["deduped"], tries, fsync, now
                )
                journal.lock.notify_all()
                return True
        if response.status not in (429, 503):
            self.stop(f"batch {batch.number}: HTTP {response.status} {answer[:300]!r}")
        return False
