"""Ranges of a topic, by seq or by time."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

from ..client import Topic
from ..client.arguments import since_ms


def time_ms(name: str, text: str) -> int:
    """A time in epoch milliseconds: of an ISO time, an age, or milliseconds."""
    return since_ms(name, int(text) if text.isascii() and text.isdigit() else text)


@dataclass(frozen=True, slots=True)
class Range:
    """A range of a topic, and which of its records are wanted."""

    after: int | None
    """`None` begins with the first record that is kept."""
    to_seq: int | None
    tag: str | None
    exclude_nodes: list[str] | None

    @classmethod
    def of(cls, topic: Topic, args: argparse.Namespace) -> Range:
        """The range of a command's arguments; times become seqs."""
        after, to_seq = args.after, args.to_seq
        if args.since is not None:
            after = topic.seek(time_ms("--since", args.since))
        if args.until is not None:
            to_seq = topic.seek(time_ms("--until", args.until))
        return cls(after, to_seq, args.tag, args.exclude_nodes)

    def arguments(self) -> dict[str, Any]:
        """The arguments of `Topic.read`."""
        named = {"to_seq": self.to_seq, "tag": self.tag, "exclude_nodes": self.exclude_nodes}
        return named if self.after is None else {"after": self.after, **named}
