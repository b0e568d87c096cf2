"""Text of others on a terminal: no character of it controls the terminal, or hides what it is."""

from __future__ import annotations

import unicodedata
from typing import TextIO

JOINERS = "\u200c\u200d"
"""Format characters that scripts and emoji need, and that move nothing."""

CONTROLS = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""The categories of control and format characters (bidirectional ones among them), surrogates, and
separators of lines and paragraphs."""

NAMED = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def escaped(text: str) -> str:
    """The text with every control character as JSON escapes it.

    Escaping text again changes nothing. Inside the strings of a JSON text, the escapes mean the
    same as the characters.
    """
    if text.isprintable():
        return text
    return "".join(map(_escape, text))


def _escape(character: str) -> str:
    if unicodedata.category(character) not in CONTROLS or character in JOINERS:
        return character
    if character in NAMED:
        return NAMED[character]
    code = ord(character)
    if code < 0x10000:
        return f"\\u{code:04x}"
    code -= 0x10000
    return f"\\u{0xD800 + (code >> 10):04x}\\u{0xDC00 + (code & 0x3FF):04x}"


class EscapedLines:
    """A stream to write lines to, whole, which escapes them."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, line: str) -> None:
        self._stream.write(escaped(line.removesuffix("\n")) + "\n")
