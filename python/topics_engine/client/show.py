"""The text and HTML forms of handles, for terminals and notebooks."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from ..errors import Closed, NotFound, TopicsError
from .backend import call_timeout
from .values import Record, TopicInfo, TopicState

if TYPE_CHECKING:
    from .database import Database
    from .topic import Topic


def escape(text: str) -> str:
    """Text as HTML. Only notebooks need the module."""
    import html

    return html.escape(text)


ROWS, MOST_TOPICS = 10, 100
REPR_TIMEOUT = 1.0


@contextlib.contextmanager
def _short_timeout() -> Iterator[None]:
    """Limits the calls in the block, so that showing a handle does not block for long."""
    before = call_timeout.set(REPR_TIMEOUT)
    try:
        yield
    finally:
        call_timeout.reset(before)


def topic_text(topic: Topic) -> str:
    """A topic in one line."""
    return _topic_line(topic, _state(topic))


def _state(topic: Topic) -> TopicState | str:
    """The state of a topic, or why it is unknown."""
    try:
        with _short_timeout():
            return topic.state()
    except NotFound:
        return "not created yet"
    except Closed:
        return "closed"
    except TopicsError as error:
        return error.code
    except Exception as error:
        # Showing a handle never raises, whatever state its backend is in.
        return type(error).__name__


def _topic_line(topic: Topic, state: TopicState | str) -> str:
    kind = type(topic).__name__
    if isinstance(state, str):
        return f"<{kind} {topic.name!r}, {state}>"
    if state.queue is not None:
        jobs = state.queue
        counts = f"{jobs['ready']} ready, {jobs['in_flight']} leased, {jobs['dead']} dead"
        return f"<{kind} {topic.name!r}, {state.config['durability']}, {counts}>"
    return (
        f"<{kind} {topic.name!r}, {state.config['durability']}, {state.count} records, "
        f"{size(state.bytes)}, seqs {state.earliest_seq} to {state.head_seq}>"
    )


def topic_html(topic: Topic) -> str:
    """The newest records of a topic and its rate."""
    state = _state(topic)
    title = f"<b>{escape(_topic_line(topic, state)[1:-1])}</b>"
    if isinstance(state, str):
        return title
    try:
        with _short_timeout():
            records = [item for item in topic.tail(ROWS) if isinstance(item, Record)]
    except TopicsError:
        return title
    rate = ""
    if len(records) > 1 and records[-1].ts > records[0].ts:
        seconds = (records[-1].ts - records[0].ts) / 1000
        rate = f"<br>{(records[-1].seq - records[0].seq) / seconds:.3g} records/s at the end"
    head = "".join(f"<th>{name}</th>" for name in ("seq", "time (UTC)", "origin", "tag", "data"))
    body = "".join(_row(record) for record in reversed(records))
    return f"{title}{rate}<table><tr>{head}</tr>{body}</table>"


def items_html(title: str, items: Sequence[object]) -> str:
    """Records and gaps as a table."""
    head = "".join(f"<th>{name}</th>" for name in ("seq", "time (UTC)", "origin", "tag", "data"))
    rows = "".join(_row(item) if isinstance(item, Record) else _note(item) for item in items[:ROWS])
    more = f"<br>and {len(items) - ROWS} more" if len(items) > ROWS else ""
    return f"<b>{escape(title.strip('<>'))}</b><table><tr>{head}</tr>{rows}</table>{more}"


def _note(item: object) -> str:
    return f'<tr><td colspan="5">{escape(repr(item))}</td></tr>'


def fields_html(title: str, fields: Mapping[str, object]) -> str:
    """The fields of a value as a table."""
    rows = "".join(
        f"<tr><th>{escape(name)}</th><td>{escape(str(value))}</td></tr>"
        for name, value in fields.items()
    )
    return f"<b>{escape(title)}</b><table>{rows}</table>"


def _row(record: Record) -> str:
    time = datetime.fromtimestamp(record.ts / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
    text = (
        repr(record.stored[:200])
        if record.binary
        else record.stored[:200].decode("utf-8", "replace")
    )
    cells = (str(record.seq), time, record.origin or "", record.tag or "", text)
    return "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>"


def database_text(db: Database) -> str:
    """A database in one line."""
    return _database_line(db, _listed(db))


def _listed(db: Database) -> list[TopicInfo] | str:
    """The topics, or why they are unknown."""
    if db.closed:
        return "closed"
    try:
        with _short_timeout():
            return list(db.topics())
    except TopicsError as error:
        return error.code
    except Exception as error:
        # Showing a handle never raises, whatever state its backend is in.
        return type(error).__name__


def _database_line(db: Database, topics: list[TopicInfo] | str) -> str:
    if isinstance(topics, str):
        return f"<Database {db.path!r}, {topics}>"
    records = sum(t.count for t in topics)
    return f"<Database {db.path!r}, {len(topics)} topics, {records} records>"


def database_html(db: Database) -> str:
    """The topics of a database as a table."""
    topics = _listed(db)
    title = f"<b>{escape(_database_line(db, topics)[1:-1])}</b>"
    if isinstance(topics, str):
        return title
    head = "".join(f"<th>{name}</th>" for name in ("topic", "class", "records", "size", "head"))
    rows = "".join(
        f"<tr><td>{escape(t.topic)}</td><td>{t.durability}</td><td>{t.count}</td>"
        f"<td>{size(t.bytes)}</td><td>{t.head_seq}</td></tr>"
        for t in topics[:MOST_TOPICS]
    )
    return f"{title}<table><tr>{head}</tr>{rows}</table>"


def size(n: int) -> str:
    """A number of bytes with its unit."""
    value = float(n)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"
