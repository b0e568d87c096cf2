"""How handles look, in a terminal and in a notebook."""

from __future__ import annotations

from datetime import UTC, datetime
from html import escape
from typing import TYPE_CHECKING

from ..errors import Closed, NotFound, TopicsError
from .values import Record

if TYPE_CHECKING:
    from .database import Database
    from .topic import Topic

ROWS = 10


def topic_text(topic: Topic) -> str:
    """One line."""
    try:
        state = topic.state()
    except NotFound:
        return f"<Topic {topic.name!r}, not created yet>"
    except Closed:
        return f"<Topic {topic.name!r}, closed>"
    except TopicsError as error:
        return f"<Topic {topic.name!r}, {error.code}>"
    return (
        f"<Topic {topic.name!r}, {state.config['durability']}, {state.count} records, "
        f"{size(state.bytes)}, seqs {state.earliest_seq} to {state.head_seq}>"
    )


def topic_html(topic: Topic) -> str:
    """The newest rows and how fast they come."""
    title = f"<b>{escape(topic_text(topic)[1:-1])}</b>"
    try:
        records = [item for item in topic.tail(ROWS) if isinstance(item, Record)]
    except TopicsError:
        return title
    rate = ""
    if len(records) > 1 and records[-1].ts > records[0].ts:
        seconds = (records[-1].ts - records[0].ts) / 1000
        rate = f"<br>{(records[-1].seq - records[0].seq) / seconds:.3g} records/s at the end"
    head = "".join(f"<th>{name}</th>" for name in ("seq", "time (UTC)", "node", "tag", "data"))
    body = "".join(_row(record) for record in reversed(records))
    return f"{title}{rate}<table><tr>{head}</tr>{body}</table>"


def _row(record: Record) -> str:
    time = datetime.fromtimestamp(record.ts / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
    text = (
        repr(record.stored[:200])
        if record.binary
        else record.stored[:200].decode("utf-8", "replace")
    )
    cells = (str(record.seq), time, record.node or "", record.tag or "", text)
    return "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>"


def database_text(db: Database) -> str:
    """One line."""
    if db.closed:
        return f"<Database {db.path!r}, closed>"
    topics = list(db.topics())
    records = sum(t.count for t in topics)
    return f"<Database {db.path!r}, {len(topics)} topics, {records} records>"


def database_html(db: Database) -> str:
    """The topics."""
    title = f"<b>{escape(database_text(db)[1:-1])}</b>"
    if db.closed:
        return title
    head = "".join(f"<th>{name}</th>" for name in ("topic", "class", "records", "size", "head"))
    rows = "".join(
        f"<tr><td>{escape(t.topic)}</td><td>{t.durability}</td><td>{t.count}</td>"
        f"<td>{size(t.bytes)}</td><td>{t.head_seq}</td></tr>"
        for t, _ in zip(db.topics(), range(100), strict=False)
    )
    return f"{title}<table><tr>{head}</tr>{rows}</table>"


def size(n: int) -> str:
    """Bytes for people."""
    value = float(n)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"
