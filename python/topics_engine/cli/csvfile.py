"""CSV of `export` and `import`.

`export` writes the columns of a record, with the payload as JSON text in `data` or as base64 in
`data_b64`; `import` reads them back. Of any other CSV file, `import` makes a JSON object of each
row.
"""

from __future__ import annotations

import argparse
import base64
import binascii
import csv
import io
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, BinaryIO, TextIO

from ..client import Gap, Record
from .output import data_text

if TYPE_CHECKING:
    from ..client.backend import NewRow

COLUMNS = ("seq", "time", "tag", "origin", "meta", "data", "data_b64", "gap_to", "gap_reason")
# The engine's limit on a record is far below.
csv.field_size_limit(1 << 30)


class CsvWriter:
    """Writes records and gaps."""

    def __init__(self, stream: TextIO) -> None:
        self._writer = csv.writer(stream, lineterminator="\n")
        self._writer.writerow(COLUMNS)

    def record(self, record: Record) -> None:
        meta = None if record.meta is None else json.dumps(dict(record.meta), ensure_ascii=False)
        text = data_text(record)
        payload = (None, text.strip('"')) if record.binary else (text, None)
        time = datetime.fromtimestamp(record.ts / 1000, UTC).isoformat(timespec="milliseconds")
        self._writer.writerow(
            (record.seq, time, record.tag, record.origin, meta, *payload, None, None)
        )

    def tombstone(self, lost: Gap) -> None:
        row = dict.fromkeys(COLUMNS) | {
            "seq": lost.first,
            "gap_to": lost.last,
            "gap_reason": lost.reason,
        }
        self._writer.writerow(row.values())


def rows_of_csv(source: BinaryIO, args: argparse.Namespace, skipped: list[int]) -> Iterator[NewRow]:
    """The rows of a file as records; gaps are counted in `skipped`."""
    text = io.TextIOWrapper(source, "utf-8-sig", newline="")
    try:
        reader = csv.DictReader(text, strict=True)
        names = reader.fieldnames or []
        is_exported = names == list(COLUMNS)
        if len(set(names)) < len(names) or "" in names:
            raise ValueError("the first line must name every column, each once")
        for row in reader:
            if None in row or None in row.values():
                raise ValueError(f"line {reader.line_num} has not as many fields as the first line")
            if not is_exported:
                data = json.dumps(row, ensure_ascii=False).encode()
                yield data, False, args.tag, None, None, 0
            elif row["gap_to"]:
                skipped[0] += 1
            else:
                yield _exported(row, args, reader.line_num)
    except (csv.Error, UnicodeDecodeError) as error:
        raise ValueError(f"the file is not valid CSV: {error}") from None
    finally:
        text.detach()


def _exported(row: dict[str, Any], args: argparse.Namespace, line: int) -> NewRow:
    """A record as `export` wrote it."""
    is_binary = not row["data"]
    try:
        if is_binary:
            data = base64.b64decode(row["data_b64"], validate=True)
        else:
            json.loads(row["data"])
            data = row["data"].encode()
        meta = row["meta"].encode() if row["meta"] else None
        if meta is not None:
            json.loads(meta)
    except (ValueError, binascii.Error) as error:
        raise ValueError(f"line {line} is not as `topics export` writes it: {error}") from None
    return data, is_binary, row["tag"] or args.tag, row["origin"] or None, meta, 0
