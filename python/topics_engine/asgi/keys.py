"""API keys: digests, scopes and name prefixes.

`TOPICS_API_KEYS` is `key[:scopes[:prefixes]]`, comma-separated. Only the SHA-256 digest of a key is
kept; no message, log or repr contains more of it.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from dataclasses import dataclass

from ..errors import InvalidRequest
from .route import Scope

SCOPES: tuple[Scope, ...] = ("read", "write", "delete", "admin")
VARIABLE = "TOPICS_API_KEYS"
_KEY = re.compile(r"[!-9;-~]{1,512}")
_PREFIX = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,254}")


@dataclass(frozen=True, slots=True)
class Client:
    """The client of a request: the number of its grant in the core, its scopes, its label, and the
    prefixes of the names that it is limited to.
    """

    grant: int
    scopes: frozenset[Scope]
    label: str
    prefixes: tuple[str, ...] = ()

    def describe(self) -> dict[str, list[str]]:
        """Its scopes and prefixes, for the client itself."""
        scopes = [scope for scope in SCOPES if scope in self.scopes]
        return {"scopes": [*scopes], "prefixes": [*self.prefixes]}


ANYONE = Client(0, frozenset(SCOPES), "")
"""The client of every request to a server without keys."""


@dataclass(frozen=True, slots=True)
class Key:
    """The digest, scopes and prefixes of a key."""

    digest: bytes
    scopes: frozenset[Scope]
    prefixes: tuple[str, ...]

    def __repr__(self) -> str:
        return f"<Key {self.label} {'+'.join(sorted(self.scopes))}>"

    @property
    def label(self) -> str:
        """Identifies the key without revealing it."""
        return self.digest.hex()[:16]


@dataclass(frozen=True, slots=True)
class Renewal:
    """The result of renewing keys: how many are new, changed and revoked, and the grants that
    ended.
    """

    new: int
    changed: int
    revoked: int
    ended: frozenset[int]


class Keys:
    """All API keys of a server; empty if it has none.

    The number of a grant stays valid while the server runs: a request may hold it while keys are
    renewed.
    """

    def __init__(self, keys: tuple[Key, ...] = ()) -> None:
        self._grants = list(keys)
        # By digest. Timing tells nothing about a key: no one chooses the digest of a guess.
        self._clients = {
            key.digest: (key, Client(i, key.scopes, key.label, key.prefixes))
            for i, key in enumerate(keys)
        }
        self._current = frozenset(range(len(keys)))

    @classmethod
    def parse(cls, text: str, file: str = "", others: Keys | None = None) -> Keys:
        """Parses the setting and the file, and adds other keys. The error about a malformed entry
        does not repeat it.
        """
        keys = {digest: key for digest, (key, _) in others._clients.items()} if others else {}
        for where, number, entry in (*_entries(text), *_entries_of(file)):
            key = _parse(entry.strip(), where, number)
            if key.digest in keys:
                raise _refuse(where, number, "the key was given before: remove one of the two")
            keys[key.digest] = key
        return cls(tuple(keys.values()))

    def renew(self, other: Keys) -> Renewal:
        """Takes the keys of `other`. A key with changed scopes or prefixes gets a new grant."""
        before, clients, new, changed = dict(self._clients), {}, 0, 0
        for digest, (key, _) in other._clients.items():
            was = before.pop(digest, None)
            if was is not None and was[0] == key:
                clients[digest] = was
                continue
            new, changed = new + (was is None), changed + (was is not None)
            client = Client(len(self._grants), key.scopes, key.label, key.prefixes)
            clients[digest] = (key, client)
            self._grants.append(key)
        current = frozenset(client.grant for _, client in clients.values())
        ended = self._current - current
        self._clients, self._current = clients, current
        return Renewal(new, changed, len(before), ended)

    def __bool__(self) -> bool:
        return bool(self._clients)

    def __len__(self) -> int:
        return len(self._clients)

    def __repr__(self) -> str:
        return f"Keys({[key for key, _ in self._clients.values()]!r})"

    def find(self, secret: bytes) -> Client | None:
        """The client of a secret."""
        found = self._clients.get(hashlib.sha256(secret).digest())
        return None if found is None else found[1]

    def has(self, grant: int) -> bool:
        """Whether a grant belongs to a current key."""
        return grant in self._current

    def grants(self) -> list[tuple[str, list[str], bool]] | None:
        """The grants for the core, by number: owner, prefixes, administrator."""
        made = [(k.label, list(k.prefixes), "admin" in k.scopes) for k in self._grants]
        return made or None


def forget(text: str) -> None:
    """Removes the keys from the environment, so that child processes do not inherit them."""
    if text and os.environ.get(VARIABLE) == text:
        del os.environ[VARIABLE]


def _entries(text: str) -> list[tuple[str, int, str]]:
    return [(VARIABLE, n, entry) for n, entry in enumerate(text.split(","), 1) if text]


def _entries_of(file: str) -> list[tuple[str, int, str]]:
    """The entries of a file: lines, or several with commas; lines that begin with # are
    comments.
    """
    if not file:
        return []
    try:
        with open(file, encoding="utf-8", opener=_open_regular) as opened:
            lines = [line.strip() for line in opened]
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"{VARIABLE}_FILE: {error}") from None
    entries = [
        entry.strip()
        for line in lines
        if line and not line.startswith("#")
        for entry in line.split(",")
    ]
    if not entries:
        # A server without keys is open to all, which the user of this setting did not want.
        raise InvalidRequest(f"{VARIABLE}_FILE: {file} has no keys: add one, or unset it")
    return [(file, n, entry) for n, entry in enumerate(entries, 1)]


def _open_regular(path: str, flags: int) -> int:
    """Opens a regular file. Opening or reading another one, such as a FIFO, may wait for ever."""
    fd = os.open(path, flags | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(f"{path} is not a regular file: write the keys into one")
    return fd


def _parse(entry: str, where: str, number: int) -> Key:
    secret, _, rest = entry.partition(":")
    words, colon, names = rest.partition(":")
    if not _KEY.fullmatch(secret):
        raise _refuse(
            where, number, "a key must have 1 to 512 printable characters, without a colon or comma"
        )
    scopes = frozenset(_scopes(words, where, number)) if words else frozenset(SCOPES)
    if colon and not names:
        why = "the prefix is empty: name one, or remove the last colon to allow all names"
        raise _refuse(where, number, why)
    prefixes = tuple(names.split("|")) if names else ()
    if not all(_PREFIX.fullmatch(prefix) for prefix in prefixes):
        raise _refuse(
            where, number, "a prefix must be the beginning of a topic name; separate prefixes by |"
        )
    return Key(hashlib.sha256(secret.encode()).digest(), scopes, prefixes)


def _scopes(words: str, where: str, number: int) -> list[Scope]:
    letters = {scope[0]: scope for scope in SCOPES}
    found: list[Scope] = []
    for word in words.split("+"):
        if word in SCOPES:
            found += [scope for scope in SCOPES if scope == word]
        elif word and all(letter in letters for letter in word):
            found += [letters[letter] for letter in word]
        else:
            raise _refuse(
                where, number, f"scopes must be {'+'.join(SCOPES)}, or their first letters"
            )
    return found


def _refuse(where: str, number: int, why: str) -> InvalidRequest:
    return InvalidRequest(f"{where}, entry {number}: {why} (key[:scopes[:prefixes]],…)")
