"""CSV of `export` and `import`.

`export` writes the columns of a record, with the payload as JSON text in `data` or as base64 in
`data_b64`; `import` reads them back. Of any other CSV file, `import` makes a JSON object of each
row.
"""

from __future__ import annotations

import argparse
import base64
import csv
import io
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, BinaryIO, TextIO

from .. import _core
from ..client import Gap, Record
from ..errors import InvalidRequest
from ..terminal import EscapedLines
from .output import data_text

if TYPE_CHECKING:
    from ..client.backend import NewRow
    from .send import Numbered

COLUMNS = ("seq", "time", "tag", "origin", "meta", "data", "data_b64", "gap_to", "gap_reason")
# The engine's limit on a record is far below.
csv.field_size_limit(1 << 30)


class CsvWriter:
    """Writes records and gaps."""

    def __init__(self, stream: TextIO) -> None:
        lines = EscapedLines(stream) if stream.isatty() else stream
        self._writer = csv.writer(lines, lineterminator="\n")
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


def rows_of_csv(
    source: BinaryIO, args: argparse.Namespace, skipped: list[int]
) -> Iterator[Numbered]:
    """The rows of a file as records, each with the number of its last line; gaps are counted in
    `skipped`.
    """
    # Bytes that are not UTF-8 pass the decoder, and fail where their line is known.
    text = io.TextIOWrapper(source, "utf-8-sig", "surrogateescape", newline="")
    reader = csv.DictReader(text, strict=True)
    try:
        names = reader.fieldnames or []
        is_exported = names == list(COLUMNS)
        if len(set(names)) < len(names) or "" in names:
            raise ValueError("the first line must name every column, each once")
        for row in reader:
            if reader.line_num <= args.skip_lines:
                continue
            if None in row or None in row.values():
                raise ValueError("it has not as many fields as the first line")
            # Whole, so that no text of the row is passed on that is not UTF-8.
            data = json.dumps(row, ensure_ascii=False).encode()
            if not is_exported:
                yield reader.line_num, (data, False, args.tag, None, None, 0)
            elif row["gap_to"]:
                skipped[0] += 1
            else:
                yield reader.line_num, _exported(row, args)
    except UnicodeEncodeError:
        message = f"line {reader.line_num} is not UTF-8: convert the file to UTF-8 first"
        raise InvalidRequest(message) from None
    except csv.Error as error:
        message = f"line {reader.line_num} is not valid CSV: {error}"
        raise InvalidRequest(message) from None
    except ValueError as error:
        raise InvalidRequest(f"line {reader.line_num}: {error}") from None
    finally:
        # An import that was interrupted closes the file before this generator.
        if not source.closed:
            text.detach()


def _exported(row: dict[str, Any], args: argparse.Namespace) -> NewRow:
    """A record as `export` wrote it."""
    is_binary = not row["data"]
    meta = None
    try:
        if is_binary:
            data = base64.b64decode(row["data_b64"], validate=True)
        else:
            data = _core.payload_of_line(row["data"].encode())
        if row["meta"]:
            members = b'{"data":0,"meta":%b}' % _core.payload_of_line(row["meta"].encode())
            checked = _core.record_of_line(members)
            meta = None if checked is None else checked[4]
    except ValueError as error:
        raise ValueError(f"it is not as `topics export` writes it: {error}") from None
    return data, is_binary, row["tag"] or args.tag, row["origin"] or None, meta, 0
