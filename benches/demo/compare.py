"""Compares sent and stored records: every flight once, at the seq that its ack named."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Iterator

from .load import Ack
from .slices import members

# (seq, tag, payload bytes) in seq order.
Row = tuple[int, str, bytes]


def over_http(port: int, topic: str) -> Iterator[Row]:
    """Every record of a topic over HTTP; payloads are slices of the answer, never re-encoded."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    cursor = 0
    try:
        while True:
            body = json.dumps(
                {
                    "from_seq": cursor,
                    "limit": 1000,
                    "include_tags": True,
                    "max_batch_bytes": 8 << 20,
                }
            )
            headers = {"Content-Type": "application/json"}
            connection.request("POST", f"/v0/topics/{topic}/diff", body, headers)
            response = connection.getresponse()
            text = response.read().decode()
            if response.status != 200:
                raise RuntimeError(f"reading {topic}: HTTP {response.status} {text[:300]}")
            fields = {name: text[a:b] for name, a, b in members(text, 0)}
            if fields.get("tombstone", "null") != "null":
                raise RuntimeError(f"reading {topic}: tombstone {fields['tombstone']}")
            for _, a, _ in members(fields["records"], 0):
                record = {n: fields["records"][x:y] for n, x, y in members(fields["records"], a)}
                tag = json.loads(record["$tag"])
                yield int(record["$seq"]), tag, record["data"].encode()
            cursor = int(fields["next_from_seq"])
            if fields["caught_up"] == "true":
                return
    finally:
        connection.close()


def in_process(database, topic: str) -> Iterator[Row]:  # type: ignore[no-untyped-def]
    """The same in this process, where a gap raises an exception."""
    for record in database.topic(topic).read(after=0, gaps="raise"):
        yield record.seq, record.tag, bytes(record.raw)


def mismatches(acks: list[Ack], rows: Callable[[str], Iterator[Row]]) -> list[str]:
    """Every difference between the records and the acked batches, as text."""
    problems: list[str] = []
    topics: dict[str, list[Ack]] = {}
    for ack in acks:
        topics.setdefault(ack.batch.topic, []).append(ack)
    for topic, acked in sorted(topics.items()):
        acked.sort(key=lambda a: a.first_seq)
        problems += _ranges(topic, acked)
        expected = ((a, flight) for a in acked for flight in a.batch.flights)
        following, count = 1, 0
        for seq, tag, data in rows(topic):
            count += 1
            if seq != following:
                problems.append(f"{topic}: seq {seq} follows {following - 1}")
            following = seq + 1
            wanted = next(expected, None)
            if wanted is None:
                problems.append(f"{topic}: seq {seq} holds a record that was never acked")
            elif (tag, data) != (wanted[1].carrier, wanted[1].data):
                ack, flight = wanted
                problems.append(
                    f"{topic}: seq {seq} (batch {ack.batch.number}) holds {tag} {data[:200]!r}, "
                    f"sent was {flight.carrier} {flight.data[:200]!r}"
                )
            if len(problems) > 20:
                return [*problems, "and more"]
        missing = sum(1 for _ in expected)
        if missing:
            problems.append(f"{topic}: {missing} acked records are missing after {count}")
    return problems


def _ranges(topic: str, acked: list[Ack]) -> list[str]:
    """The acked ranges must be adjacent, start at 1, and be as long as their batches."""
    problems = []
    following = 1
    for ack in acked:
        length = ack.last_seq - ack.first_seq + 1
        if ack.first_seq != following or length != len(ack.batch.flights):
            problems.append(
                f"{topic}: batch {ack.batch.number} of {len(ack.batch.flights)} was acked as "
                f"{ack.first_seq}…{ack.last_seq}, expected to begin at {following}"
            )
        following = ack.last_seq + 1
    return problems
