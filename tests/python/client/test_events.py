"""The parser of event streams."""

from __future__ import annotations

import pytest

from topics_engine.remote.events import Event, Parser


@pytest.mark.parametrize(
    ("lines", "data"),
    [
        (b"data: {}", b"{}"),
        (b"data: {\ndata: \ndata:  }", b"{\n\n }"),
        (b"line-ends: nrb\ndata: {\ndata: \ndata:  \ndata: }", b"{\n\r \r\n}"),
        (b"line-ends: r\ndata: {\ndata: }", b"{\r}"),
    ],
)
def test_line_ends_of_data(lines: bytes, data: bytes) -> None:
    whole = b"id: 7\nevent: record\n" + lines + b"\n\n"
    assert Parser().feed(whole) == [Event("record", data, "7")]
    parser = Parser()
    pieces = [parser.feed(whole[at : at + 1]) for at in range(len(whole))]
    assert [event for events in pieces for event in events] == [Event("record", data, "7")]
