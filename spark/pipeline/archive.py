"""An archive: a server whose older records are only in an object store."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark_topics.client import Client

from support.server import Server

from .dataset import Row
from .feed import append, plain

if TYPE_CHECKING:
    import topics_engine as te

SEGMENTS = 8
"""Segments of the smaller topic, at least."""
LIMIT = 300.0
"""Seconds until the records have left the disk."""


def settings(folder: Path, archived: dict[str, int]) -> te.ServerSettings:
    """Settings of a server that keeps one full segment of each topic on its disk, and the older
    ones in `folder`, which stands for an object store."""
    return {
        "remote_url": folder.as_uri(),
        "remote_base_interval_ms": 1000,
        "hot_retain_segments": 1,
        "segment_max_events": max(1, min(archived.values()) // SEGMENTS),
        "pack_bytes": 4 << 20,
    }


def archive(
    server: Server, client: Client, rows: dict[str, list[Row]], archived: dict[str, int]
) -> dict[str, int]:
    """Appends the first rows of each topic, as many as `archived` says, and waits until all their
    full segments but the last have left the disk and the memory. Returns the number of cold
    records."""
    for topic, count in archived.items():
        client.call("PUT", f"/v0/topics/{topic}", {})
        for _ in append(client, topic, [plain(row) for row in rows[topic][:count]]):
            pass
    until = time.monotonic() + LIMIT
    while True:
        # The files of a segment go two checkpoints after its records are in the store.
        client.call("POST", "/v0/admin/checkpoint", {})
        tiers = {topic: _tiers(client, topic) for topic in archived}
        on_disk = sum(1 for _ in server.data_dir.glob("topics/*/*.data"))
        archived_all = all(found["cold"] and not found["log"] for found in tiers.values())
        # One full segment of each topic, and the one that is appended to.
        if archived_all and on_disk <= 2 * len(tiers):
            # Nothing that was appended is in the memory of the next process.
            server.stop()
            server.start()
            return {topic: found["cold"] for topic, found in tiers.items()}
        if time.monotonic() > until:
            raise SystemExit(f"records stay on the disk for {LIMIT:g} s: {tiers}")
        time.sleep(0.1)


def _tiers(client: Client, topic: str) -> Counter[str]:
    """The records of a topic by the tier that holds them."""
    found: Counter[str] = Counter()
    for segment in client.call("GET", f"/v0/topics/{topic}/segments")["segments"]:
        found[segment["tier"]] += segment["count"]
    return found


def bytes_fetched(client: Client) -> int:
    """The bytes that this process of the server has fetched for reads of cold records."""
    return int(client.call("GET", "/v0/metrics")["cold_read_bytes"])
