"""Shell completion scripts, generated from the argument parser.

Names of topics and the like come from the server or directory that the command line names.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..client import Database

SHELLS = ("bash", "zsh", "fish")

NAMES = "--complete-names"
"""The hidden argument of `topics` that prints names: followed by a kind, and by a word."""

KINDS = {
    "topic": "topic",
    "topics": "topic",
    "source": "topic",
    "dest": "topic",
    "queue": "queue",
    "router": "router",
    "context": "context",
}
"""Kinds of names by positional argument."""

MOST_NAMES = 500


def matching_names(db: Database, kind: str, word: str) -> Iterator[str]:
    """The names of a kind that begin with a word."""
    match kind:
        case "router":
            found = (info.router for info in db.routers(word))
        case "queue":
            found = (info.topic for info in db.queues(word))
        case _:
            found = (info.topic for info in db.topics(word))
    yield from islice(found, MOST_NAMES)


@dataclass(frozen=True, slots=True)
class Node:
    """The words that may follow a command, or the program's name."""

    path: tuple[str, ...]
    verbs: dict[str, str]
    """Subcommands with their summaries."""
    options: dict[str, tuple[str, ...]]
    """Options with their choices, if they have any."""
    valued: frozenset[str]
    """The options that take a value."""
    names: str = ""
    """The kind of names that may follow, if any."""
    takes_file: bool = False
    """Whether a file may follow."""

    @property
    def key(self) -> str:
        return "".join(f"/{verb}" for verb in self.path)


def nodes(parser: argparse.ArgumentParser, path: tuple[str, ...] = ()) -> Iterator[Node]:
    """The node of a parser, and those of its subcommands."""
    verbs: dict[str, str] = {}
    options: dict[str, tuple[str, ...]] = {}
    below: dict[str, argparse.ArgumentParser] = {}
    valued: set[str] = set()
    kind, takes_file = "", False
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            below = dict(action.choices)
            verbs |= {c.dest: c.help or "" for c in action._choices_actions}
        elif action.option_strings:
            values = tuple(map(str, action.choices or ()))
            options |= dict.fromkeys(action.option_strings, values)
            if action.nargs != 0:
                valued.update(action.option_strings)
        elif action.choices:
            verbs |= dict.fromkeys(map(str, action.choices), "")
        else:
            kind = kind or KINDS.get(action.dest, "")
            takes_file = takes_file or action.dest == "file"
    yield Node(path, verbs, options, frozenset(valued), kind, takes_file)
    for name, parser in below.items():
        yield from nodes(parser, (*path, name))


def script(parser: argparse.ArgumentParser, shell: str) -> str:
    """The script for a shell: `eval "$(topics completion bash)"`."""
    found = list(nodes(parser))
    if shell == "fish":
        return _fish(found)
    head = "autoload -U +X bashcompinit && bashcompinit\n" if shell == "zsh" else ""
    return head + _bash(found)


def _bash(found: list[Node]) -> str:
    steps = " | ".join(node.key for node in found if node.path)
    values = [
        f'        {node.key}:{option}) words="{" ".join(choices)}" ;;'
        for node in found
        for option, choices in node.options.items()
        if choices
    ]
    words = [
        f'        {node.key or chr(34) * 2}) words="{" ".join([*node.verbs, *node.options])}"'
        + (f" kind={node.names}" if node.names else "")
        + " ;;"
        for node in found
    ]
    return "\n".join(
        (
            "_topics() {",
            '    local cur="${COMP_WORDS[COMP_CWORD]}" at= words= kind= i',
            '    local -a call=("${COMP_WORDS[0]}")',
            "    for ((i = 1; i < COMP_CWORD; i++)); do",
            '        case "${COMP_WORDS[i]}" in',
            "        --url | --data-dir | --context)",
            '            call+=("${COMP_WORDS[i]}" "${COMP_WORDS[i + 1]}") ;;',
            "        esac",
            '        case "$at/${COMP_WORDS[i]}" in',
            f'        {steps}) at="$at/${{COMP_WORDS[i]}}" ;;',
            "        esac",
            "    done",
            '    case "$at:${COMP_WORDS[COMP_CWORD - 1]}" in',
            *values,
            "    esac",
            '    [ -n "$words" ] || case "$at" in',
            *words,
            "    esac",
            '    if [ -n "$kind" ] && [[ "$cur" != -* ]]; then',
            f'        words="$words $("${{call[@]}}" {NAMES} "$kind" "$cur" 2>/dev/null)"',
            "    fi",
            '    COMPREPLY=($(compgen -W "$words" -- "$cur"))',
            "}",
            "complete -o default -F _topics topics",
            "",
        )
    )


FISH = """\
complete -c topics -e
function __topics_at
    set -l at ""
    for word in (commandline -opc)[2..]
        switch $at/$word
            case {steps}
                set at $at/$word
        end
    end
    test "$at" = "$argv[1]"
end
function __topics_names
    set -l words (commandline -opc)
    set -l call $words[1]
    set -l i 2
    while test $i -le (count $words)
        switch $words[$i]
            case --url --data-dir --context
                set -a call $words[$i] $words[(math $i + 1)]
        end
        set i (math $i + 1)
    end
    $call {names} $argv[1] (commandline -ct) 2>/dev/null
end
"""


def _fish(found: list[Node]) -> str:
    steps = " ".join(node.key for node in found if node.path)
    lines = [FISH.format(steps=steps, names=NAMES)]
    for node in found:
        begin = f"complete -c topics -n '__topics_at \"{node.key}\"'"
        if not node.takes_file:
            lines.append(f"{begin} -f")
        for verb, summary in node.verbs.items():
            text = summary.replace("'", "\\'")
            lines.append(f"{begin} -a {verb} -d '{text}'")
        if node.names:
            lines.append(f"{begin} -a '(__topics_names {node.names})'")
        for option, choices in node.options.items():
            kind = f"-l {option[2:]}" if option.startswith("--") else f"-s {option[1:]}"
            values = f" -xa '{' '.join(choices)}'" if choices else ""
            takes_value = " -r" if option in node.valued and not choices else ""
            lines.append(f"{begin} {kind}{values}{takes_value}")
    return "\n".join((*lines, ""))
