"""Compares what the example has written with what it must be."""

from __future__ import annotations

import base64
import json
import zlib
from pathlib import Path
from typing import Any

import pandas as pd
from pipeline.dataset import Row
from pyspark_topics.client import Client

from .dataset import BINARY, comparable, sums
from .job import DEAD, TOPIC
from .maintain import FILES


def compare_table(name: str, output: Path, wanted: pd.DataFrame) -> list[str]:
    """The differences between a table and pandas, before and after its maintenance."""
    wrong = []
    totals = sums(wanted)
    for moment in ("before", "after"):
        where = f"{name}, {moment} compaction"
        rows, found = (
            pd.read_parquet(output / f"{what}.{moment}.parquet") for what in ("rows", "sums")
        )
        if twice := int(rows["seq"].duplicated().sum()):
            wrong.append(f"{where}: {twice} rows are there twice")
        found = found.sort_values(["origin", "day"], ignore_index=True)
        try:
            pd.testing.assert_frame_equal(comparable(rows), wanted, check_exact=True)
            pd.testing.assert_frame_equal(found[totals.columns], totals, check_exact=True)
        except AssertionError as e:
            wrong.append(f"{where}: {e}")
    before, compacted, after = json.loads((output / FILES).read_text())
    print(f"{name}: {before} files, {compacted} after compaction")
    if not compacted < before:
        wrong.append(f"{name}: {before} files were not compacted")
    if after != compacted:
        wrong.append(f"{name}: a repeated batch wrote {after - compacted} files")
    return wrong


def letters(client: Client) -> list[dict[str, Any]]:
    """The records of the dead-letter topic."""
    found: list[dict[str, Any]] = []
    after: Any = "earliest"
    while True:
        page = client.call("POST", f"/v0/topics/{DEAD}/diff", {"from_seq": after, "limit": 1000})
        found += page["records"]
        after = page["next_from_seq"]
        if page["caught_up"]:
            return found


def compare_letters(
    found: list[dict[str, Any]], rows: list[Row], dead: dict[int, str]
) -> list[str]:
    """The differences. Copies of binary records may be there twice; others must not."""
    wrong = []
    seen: dict[int, str] = {}
    for letter in found:
        seq, reason = int(letter["meta"]["bad_seq"]), letter["meta"]["bad_reason"]
        if seq in seen and reason != BINARY:
            wrong.append(f"the dead letter of seq {seq} is there twice")
        seen[seq] = reason
        if not 1 <= seq <= len(rows) or letter["meta"]["bad_topic"] != TOPIC:
            wrong.append(f"a dead letter is of no record: {letter['meta']}")
        elif reason == BINARY:
            if zlib.decompress(base64.b64decode(letter["data_b64"])).decode() != rows[seq - 1].text:
                wrong.append(f"the dead letter of seq {seq} has other bytes")
        elif letter["data"] != json.loads(rows[seq - 1].text):
            wrong.append(f"the dead letter of seq {seq} has another value")
    if odd := sorted(set(seen.items()) ^ set(dead.items())):
        wrong.append(f"{len(seen)} dead letters, not {len(dead)}: {odd[:5]}")
    return wrong
