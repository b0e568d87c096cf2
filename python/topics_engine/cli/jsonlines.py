"""JSON lines, as `append` and `import` read them.

The grammar is that of the engine, so that a line is accepted or refused alike in a directory and on
a server. Blank lines, CRLF and a byte order mark before the first line are passed over; everything
else that is not UTF-8 JSON is refused with the number of its line.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, BinaryIO, TypeVar

from .. import _core
from ..errors import InvalidRequest

if TYPE_CHECKING:
    from .send import Numbered

T = TypeVar("T")

UTF8_MARK = b"\xef\xbb\xbf"
OTHER_MARKS = (b"\xff\xfe", b"\xfe\xff")
"""The beginnings of UTF-16 and UTF-32 files."""
WHITESPACE = b" \t\r\n"
"""What JSON allows around a value."""


def raw_records(source: BinaryIO, args: argparse.Namespace) -> Iterator[Numbered]:
    """Each line as a binary record, whatever it is."""
    for number, line in enumerate(source, 1):
        if number > args.skip_lines:
            yield number, (line.rstrip(b"\r\n"), True, args.tag, None, None, 0)


def payload_records(source: BinaryIO, args: argparse.Namespace) -> Iterator[Numbered]:
    """Each line as the payload of a record; numbers and spaces stay as they were written."""
    for number, line in _lines(source, args.skip_lines):
        payload = _parsed(
            _core.payload_of_line, number, line, "; use --raw for lines of other text"
        )
        yield number, (payload, False, args.tag, None, None, 0)


def exported_records(
    source: BinaryIO, args: argparse.Namespace, skipped: list[int]
) -> Iterator[Numbered]:
    """The records of lines that `export` and `read` print; gaps are counted in `skipped`."""
    for number, line in _lines(source, args.skip_lines):
        found = _parsed(_core.record_of_line, number, line)
        if found is None:
            skipped[0] += 1
            continue
        payload, binary, tag, node, meta = found
        yield number, (payload, binary, args.tag if tag is None else tag, node, meta, 0)


def _lines(source: BinaryIO, skip: int) -> Iterator[tuple[int, bytes]]:
    """The lines after the first `skip` that are not blank, with their numbers from 1."""
    for number, line in enumerate(source, 1):
        if number == 1:
            if line.startswith(OTHER_MARKS):
                raise InvalidRequest(
                    "line 1 begins with the mark of UTF-16 or UTF-32, and JSON lines are UTF-8: "
                    "convert them first, for example with `iconv -f UTF-16 -t UTF-8`"
                )
            line = line.removeprefix(UTF8_MARK)
        if number > skip and line.strip(WHITESPACE):
            yield number, line


def _parsed(parse: Callable[[bytes], T], number: int, line: bytes, advice: str = "") -> T:
    try:
        return parse(line)
    except InvalidRequest as error:
        raise InvalidRequest(f"line {number}: {error}{advice}") from None
