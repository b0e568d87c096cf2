"""`export` and `import`: the records of a topic as JSON lines, CSV, Arrow or Parquet."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import itertools
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from ..client import Database, Record
from ..client.encoding import rows_of
from ..errors import InvalidRequest
from ..extras import extra
from .csvfile import CsvWriter, rows_of_csv
from .exits import Exit
from .jsonlines import exported_records
from .output import Output, Progress
from .ranges import Range
from .send import send

if TYPE_CHECKING:
    from .send import Numbered

FORMATS = ("jsonl", "csv", "arrow", "parquet")
ENDINGS = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".csv": "csv",
    ".arrow": "arrow",
    ".arrows": "arrow",
    ".feather": "arrow",
    ".parquet": "parquet",
}
COLUMNAR = ("arrow", "parquet")
"""Formats whose files have rows, not lines."""
PART_BYTES = 32 << 20
"""Bytes of a request for columns, approximately."""


def export(db: Database, args: argparse.Namespace, out: Output) -> int:
    """Exports the records and gaps of a topic to a file or standard output."""
    going = Export(db, args)
    kind = _kind(args)
    if kind in COLUMNAR and args.file == "-" and sys.stdout.isatty():
        raise InvalidRequest(f"{kind} is binary and no text for a terminal: name a file, or a pipe")
    write = {"jsonl": going.lines, "csv": going.csv}.get(kind, going.columns)
    with _output_file(args.file) as sink:
        count, lost = write(sink)
    going.progress.end()
    if args.file != "-":
        out.fields({"topic": args.topic, "file": args.file, "records": count, "gaps": lost})
    return Exit.OK


def _kind(args: argparse.Namespace) -> str:
    """The format: the one that was named, or by the file's ending."""
    ending: str = Path(args.file).suffix.lower()
    found = args.format or ENDINGS.get(ending) or ("jsonl" if not ending else None)
    if found is None:
        raise InvalidRequest(
            f"{args.file}: the ending {ending!r} names no format: use --format {'|'.join(FORMATS)}"
        )
    return str(found)


@contextlib.contextmanager
def _output_file(file: str) -> Iterator[BinaryIO]:
    """Opens the output; a file is replaced only when it is complete."""
    if file == "-":
        sys.stdout.flush()
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    part = f"{file}.part"
    try:
        with open(part, "wb") as sink:
            yield sink
        os.replace(part, file)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(part)
        raise


class Export:
    """The export of a range of a topic."""

    def __init__(self, db: Database, args: argparse.Namespace) -> None:
        self._db = db
        self._args = args
        topic = db.topic(args.topic)
        state = topic.state()
        self._topic_id = state.topic_id
        self._range = wanted = Range.of(topic, args)
        self._after = state.earliest_seq - 1 if wanted.after is None else wanted.after
        end = state.head_seq if wanted.to_seq is None else min(wanted.to_seq, state.head_seq)
        self._to_seq = end
        self.progress = Progress("export", max(0, self._to_seq - self._after))

    def lines(self, sink: BinaryIO) -> tuple[int, int]:
        """Writes JSON lines; returns the numbers of records and gaps."""
        text = io.TextIOWrapper(sink, "utf-8")
        found = self._each(Output(json_lines=True, stream=text))
        text.flush()
        # The caller closes the sink.
        text.detach()
        return found

    def csv(self, sink: BinaryIO) -> tuple[int, int]:
        """Writes CSV; returns the numbers of records and gaps."""
        text = io.TextIOWrapper(sink, "utf-8", newline="")
        found = self._each(CsvWriter(text))
        text.flush()
        text.detach()
        return found

    def _each(self, to: Output | CsvWriter) -> tuple[int, int]:
        """Prints every record and gap of the range."""
        count, lost = 0, 0
        how = replace(self._range, to_seq=self._to_seq).arguments()
        read = self._db.topic(self._args.topic).read(**how)
        for batch in read.batches():
            for item in batch:
                if isinstance(item, Record):
                    to.record(item)
                    count += 1
                else:
                    to.tombstone(item)
                    lost += 1
            self.progress.show(read.cursor - self._after)
        return count, lost

    def columns(self, sink: BinaryIO) -> tuple[int, int]:
        """Writes Arrow or Parquet; returns the numbers of records and gaps."""
        writer, schema, count, lost = None, None, 0, 0
        for batch in self._batches():
            if writer is None:
                schema, writer = batch.schema, self._writer(sink, batch.schema)
            elif batch.schema != schema:
                raise self._mixed()
            if not len(batch):
                continue
            writer.write_batch(batch)
            gaps = len(batch) - batch["gap_to"].null_count
            count, lost = count + len(batch) - gaps, lost + gaps
            self.progress.show(batch["seq"][-1].as_py() - self._after)
        if writer is not None:
            writer.close()
        return count, lost

    def _writer(self, sink: BinaryIO, schema: Any) -> Any:
        if _kind(self._args) == "parquet":
            return _pyarrow("pyarrow.parquet").ParquetWriter(sink, schema)
        arrow = _pyarrow("pyarrow")
        # A pipe cannot seek, which the file format needs.
        made = arrow.ipc.new_stream if self._args.file == "-" else arrow.ipc.new_file
        return made(sink, schema)

    def _batches(self) -> Iterator[Any]:
        """The range in batches; the first one is empty and has the schema."""
        arrow, args, wanted = _pyarrow("pyarrow"), self._args, self._range
        asked: dict[str, Any] = {"topic_id": self._topic_id}
        if wanted.exclude_nodes is not None:
            asked["exclude_nodes"] = wanted.exclude_nodes
        if wanted.tag is not None:
            asked["tag"] = wanted.tag
        end = max(self._after, self._to_seq)
        parts = self._db.split(args.topic, after=self._after, to_seq=end, max_bytes=PART_BYTES)
        bounds = [(part.after, part.to_seq) for part in parts] or [(end, end)]
        try:
            for number, (first, last) in enumerate(bounds):
                stream = self._db.scan(args.topic, after=first, to_seq=last, **asked)
                reader = arrow.RecordBatchReader.from_stream(stream)
                if number == 0:
                    yield arrow.RecordBatch.from_pylist([], reader.schema.remove_metadata())
                for batch in reader:
                    yield batch.replace_schema_metadata(None)
        except (arrow.ArrowInvalid, InvalidRequest) as error:
            if "is binary" not in str(error):
                raise
            raise self._mixed() from error

    def _mixed(self) -> ValueError:
        return ValueError(
            f"topic {self._args.topic!r} has both JSON and binary records, "
            "which one column cannot hold: use --format jsonl"
        )


def import_(db: Database, args: argparse.Namespace, out: Output) -> int:
    """Appends the output of `export`: payloads, tags, nodes and meta, in order."""
    kind = _kind(args)
    skipped: list[int] = [0]
    with contextlib.ExitStack() as open_files:
        source: BinaryIO = sys.stdin.buffer
        if args.file != "-":
            source = open_files.enter_context(open(args.file, "rb"))
        read = READERS[kind]
        unit = "row" if kind in COLUMNAR else "line"
        said = send(db, args, read(source, args, skipped), "import", unit)
    out.fields({**said, "gaps_passed_over": skipped[0]})
    return Exit.OK


def _arrow(source: BinaryIO, args: argparse.Namespace, skipped: list[int]) -> Iterator[Numbered]:
    """Reads an Arrow file or stream."""
    arrow = _pyarrow("pyarrow")
    buffered = io.BufferedReader(source) if isinstance(source, io.RawIOBase) else source
    magic = buffered.peek(6)[:6] if hasattr(buffered, "peek") else b""
    if magic == b"ARROW1":
        reader = arrow.ipc.open_file(_seekable(buffered))
        parts = (reader.get_batch(n) for n in range(reader.num_record_batches))
    else:
        parts = iter(arrow.ipc.open_stream(buffered))
    return _rows(parts, args, skipped)


def _parquet(source: BinaryIO, args: argparse.Namespace, skipped: list[int]) -> Iterator[Numbered]:
    parquet = _pyarrow("pyarrow.parquet")
    return _rows(parquet.ParquetFile(_seekable(source)).iter_batches(8192), args, skipped)


def _seekable(source: BinaryIO) -> BinaryIO:
    return source if source.seekable() else io.BytesIO(source.read())


def _rows(parts: Iterator[Any], args: argparse.Namespace, skipped: list[int]) -> Iterator[Numbered]:
    arrow = _pyarrow("pyarrow")
    done = 0
    for batch in parts:
        skip = min(len(batch), max(0, args.skip_lines - done))
        table = arrow.Table.from_batches([batch.slice(skip)])
        numbers = list(range(done + skip + 1, done + len(batch) + 1))
        done += len(batch)
        if "gap_to" in table.column_names:
            is_record = table["gap_to"].is_null()
            numbers = list(itertools.compress(numbers, is_record.to_pylist()))
            skipped[0] += len(table) - len(numbers)
            table = table.filter(is_record)
        try:
            rows = rows_of(table, args.tag)
        except InvalidRequest as error:
            if "index" not in error.detail:
                message = (
                    f"{error}: `import` reads records, each in a row, with the payload in `data`"
                )
                raise InvalidRequest(message) from None
            number = numbers[error.detail["index"]]
            raise InvalidRequest(f"row {number}: {error}") from None
        yield from zip(numbers, rows, strict=True)


def _pyarrow(name: str) -> Any:
    with extra("arrow", "arrow and parquet"):
        return importlib.import_module(name)


READERS = {"jsonl": exported_records, "csv": rows_of_csv, "arrow": _arrow, "parquet": _parquet}
