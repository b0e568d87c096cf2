"""Keys of clients: digests, scopes, and the names that are theirs.

`TOPICS_API_KEYS` is `key[:scopes[:prefixes]]`, comma-separated. What is kept of a key is its
SHA-256 digest; no message, log or repr has more of it.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
from dataclasses import dataclass

from ..errors import InvalidRequest
from .route import Scope

SCOPES: tuple[Scope, ...] = ("read", "write", "delete", "admin")
VARIABLE = "TOPICS_API_KEYS"
_KEY = re.compile(r"[!-9;-~]{1,512}")
_PREFIX = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,254}")


@dataclass(frozen=True, slots=True)
class Client:
    """Who a request is from: the number of its grant in the core, what it may do, its label."""

    grant: int
    scopes: frozenset[Scope]
    label: str


ANYONE = Client(0, frozenset(SCOPES), "")
"""The client of a server without keys."""


@dataclass(frozen=True, slots=True)
class Key:
    """A digest and what goes with it."""

    digest: bytes
    scopes: frozenset[Scope]
    prefixes: tuple[str, ...]

    def __repr__(self) -> str:
        return f"<Key {self.label} {'+'.join(sorted(self.scopes))}>"

    @property
    def label(self) -> str:
        """Names the key without saying it."""
        return self.digest.hex()[:16]


class Keys:
    """All keys of a server. Empty: it has none."""

    def __init__(self, keys: tuple[Key, ...] = ()) -> None:
        self._keys = keys
        self._clients = [Client(i, key.scopes, key.label) for i, key in enumerate(keys)]

    @classmethod
    def parse(cls, text: str) -> Keys:
        """The keys of a setting. A malformed entry is an error that does not repeat it."""
        keys: list[Key] = []
        for number, entry in enumerate(text.split(","), 1) if text else ():
            key = _parse(entry.strip(), number)
            if any(key.digest == other.digest for other in keys):
                raise _refuse(number, "the same key stands there twice")
            keys.append(key)
        return cls(tuple(keys))

    def __bool__(self) -> bool:
        return bool(self._keys)

    def __repr__(self) -> str:
        return f"Keys({list(self._keys)!r})"

    def find(self, secret: bytes) -> Client | None:
        """Whose key this is. Compares with every key, each in constant time."""
        digest = hashlib.sha256(secret).digest()
        found = None
        for key, client in zip(self._keys, self._clients, strict=True):
            if hmac.compare_digest(digest, key.digest):
                found = client
        return found

    def grants(self) -> list[tuple[str, list[str], bool]] | None:
        """What the core is told: owner, prefixes, administrator, by number."""
        made = [(k.label, list(k.prefixes), "admin" in k.scopes) for k in self._keys]
        return made or None


def forget(text: str) -> None:
    """Takes the keys out of the environment, so that nothing started from here inherits them."""
    if text and os.environ.get(VARIABLE) == text:
        del os.environ[VARIABLE]


def _parse(entry: str, number: int) -> Key:
    secret, _, rest = entry.partition(":")
    words, colon, names = rest.partition(":")
    if not _KEY.fullmatch(secret):
        raise _refuse(number, "a key is 1 to 512 printable characters without a colon or a comma")
    scopes = frozenset(_scopes(words, number)) if words else frozenset(SCOPES)
    if colon and not names:
        why = "the prefix is empty; name one, or leave the last colon out for a key of all names"
        raise _refuse(number, why)
    prefixes = tuple(names.split("|")) if names else ()
    if not all(_PREFIX.fullmatch(prefix) for prefix in prefixes):
        raise _refuse(number, "a prefix is the beginning of a topic's name; | stands between two")
    return Key(hashlib.sha256(secret.encode()).digest(), scopes, prefixes)


def _scopes(words: str, number: int) -> list[Scope]:
    letters = {scope[0]: scope for scope in SCOPES}
    found: list[Scope] = []
    for word in words.split("+"):
        if word in SCOPES:
            found += [scope for scope in SCOPES if scope == word]
        elif word and all(letter in letters for letter in word):
            found += [letters[letter] for letter in word]
        else:
            raise _refuse(number, f"scopes are {'+'.join(SCOPES)}, or their first letters")
    return found


def _refuse(number: int, why: str) -> InvalidRequest:
    return InvalidRequest(f"{VARIABLE}, entry {number}: {why} (key[:scopes[:prefixes]],…)")
