"""The position of a stream as a consumer of its topics, so that `topics lag` shows it.

Spark's checkpoint alone says where a stream continues; nothing reads this position back. Spark
tells a Python source neither its query's id nor the end of its last batch (`commit` lags by a
batch, and is not called for the last one), so the consumer's name is an option, and its cursor is
the start of the next batch, which Spark passes with every poll.
"""

from __future__ import annotations

import logging

from .client import Client, path_of, retryable
from .errors import TopicsError
from .offsets import Offset
from .options import ReadOptions

log = logging.getLogger("pyspark_topics")


class NamedConsumer:
    """A consumer of each topic of a stream."""

    def __init__(self, client: Client, name: str) -> None:
        self._client = client
        self._name = name
        self._stored: dict[str, int] = {}

    def store(self, done: Offset) -> None:
        """Moves the cursors of the topics whose position has changed. A server that is away is met
        again at the next poll; a key that may not do this fails the query."""
        for topic, span in done.spans.items():
            if self._stored.get(topic) == span.hi:
                continue
            try:
                self._seek(topic, span.hi - 1)
            except TopicsError as e:
                if e.code == "forbidden":
                    raise TopicsError(
                        f'"consumer" {self._name!r} cannot be stored in topic {topic!r}: '
                        f"{e.message}; use a key with the scopes read and write, or leave the "
                        "option out",
                        e.code,
                    ) from e
                if not retryable(e) and e.code != "topic_not_found":
                    raise
                log.info("the position in %s is not stored: %s", topic, e)
                continue
            self._stored[topic] = span.hi

    def _seek(self, topic: str, seq: int) -> None:
        path = path_of("topics", topic, "consumers", self._name)
        try:
            self._client.call("POST", f"{path}/seek", {"seq": seq}, once=True)
        except TopicsError as e:
            if e.code != "consumer_not_found":
                raise
            self._client.call("PUT", path, {}, once=True)
            self._client.call("POST", f"{path}/seek", {"seq": seq}, once=True)


def named_consumer(options: ReadOptions) -> NamedConsumer | None:
    if options.consumer is None:
        return None
    return NamedConsumer(Client(options.connection), options.consumer)
