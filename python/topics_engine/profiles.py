"""Profiles of `~/.aws`, for object stores in S3.

The native module imports this when it opens such a store, unless the environment has a key, or a
web identity and no AWS_PROFILE. Keys in the files are read by the open. For a role, SSO or a
process botocore obtains the credentials, on a daemon thread: it may take long, and must delay
neither the open nor the close of an engine.
"""

from __future__ import annotations

import configparser
import importlib
import importlib.util
import os
import shlex
import threading
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from ._core import CredentialAnswers

ASK = b"?"

MOST = 1 << 20
"""Maximum characters of a file: a variable may name anything."""

READ_SECONDS = 2.0
"""How long an open waits for a file: the home may be on a server that is gone."""

KEY = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")

NEEDS_BOTOCORE = {
    "role_arn": "a role",
    "sso_session": "SSO",
    "sso_start_url": "SSO",
    "login_session": "a login session",
    "credential_process": "a process",
}
"""Fields of a profile whose credentials only botocore obtains, and what these come from."""


class Profile(NamedTuple):
    """What the files say."""

    region: str | None
    keys: tuple[str, str, str | None] | None
    """Access key id, secret, session token."""
    renewed: str | None
    """The name of the profile, if botocore obtains its credentials."""


def find() -> Profile | None:
    """The profile that AWS_PROFILE names, or the default one; `None` without files.

    Raises:
        ValueError: the profile is missing or incomplete, or botocore is.
    """
    name = os.environ.get("AWS_PROFILE") or "default"
    config = os.environ.get("AWS_CONFIG_FILE") or "~/.aws/config"
    credentials = os.environ.get("AWS_SHARED_CREDENTIALS_FILE") or "~/.aws/credentials"
    sections = _read(config, "AWS_CONFIG_FILE")
    configured = {_configured(header): values for header, values in sections.items()}
    secret = _read(credentials, "AWS_SHARED_CREDENTIALS_FILE")
    if name not in configured and name not in secret:
        if not os.environ.get("AWS_PROFILE"):
            return None
        names = sorted({known for known in (*configured, *secret) if known})
        there = f"which have {', '.join(names)}" if names else "which have no profile"
        raise ValueError(
            f'AWS_PROFILE names the profile "{name}", which is not in {config} and {credentials}, '
            f"{there}: name another one, or unset AWS_PROFILE"
        )
    values = dict(configured.get(name, {}))
    if "aws_access_key_id" in secret.get(name, {}):
        # A key is taken from one file as a whole: its token too.
        for field in KEY:
            values.pop(field, None)
    return _profile(name, values | secret.get(name, {}))


def _profile(name: str, values: Mapping[str, str]) -> Profile:
    region = values.get("region") or None
    sources = [source for field, source in NEEDS_BOTOCORE.items() if values.get(field)]
    key, secret, token = (values.get(field) for field in KEY)
    if key and secret and sources in ([], ["a process"]):
        return Profile(region, (key, secret, token or None), None)
    if sources:
        if importlib.util.find_spec("botocore") is None:
            raise ValueError(
                f'the credentials of the profile "{name}" come from {sources[0]}, which needs '
                f'botocore: run `pip install botocore`, or `eval "$(aws configure '
                f'export-credentials --profile {shlex.quote(name)} --format env)"`'
            )
        return Profile(region, None, name)
    if key or secret:
        has, lacks = KEY[:2] if key else KEY[1::-1]
        raise ValueError(f'the profile "{name}" has {has} without {lacks}: add it')
    return Profile(region, None, None)


def _configured(header: str) -> str:
    """The profile of a section of the config file; empty: none."""
    kind, *name = header.split(maxsplit=1)
    if kind == "profile":
        return "".join(name).strip("\"'")
    return header if header == "default" else ""


def _read(file: str, variable: str) -> dict[str, dict[str, str]]:
    # No section has this name, so that none gives values to others.
    parser = configparser.RawConfigParser(default_section="", strict=False)
    try:
        parser.read_string(_text(Path(file).expanduser()))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, RuntimeError) as failure:
        raise ValueError(
            f"{file} cannot be read: {failure}; correct it, or set {variable}"
        ) from None
    except (configparser.Error, UnicodeDecodeError) as failure:
        # The text of the failure has lines of the file, which may be secret.
        line = getattr(failure, "lineno", None) or next(
            (number for number, _ in getattr(failure, "errors", ())), None
        )
        where = f"line {line} of {file}" if line else file
        raise ValueError(f"{where} is not of the form of an AWS profile: correct it") from None
    return {section: dict(parser.items(section)) for section in parser.sections()}


def _text(file: Path) -> str:
    read: SimpleQueue[str | Exception] = SimpleQueue()

    def put() -> None:
        try:
            with file.open(encoding="utf-8") as opened:
                text = opened.read(MOST + 1)
            read.put(text if len(text) <= MOST else OSError(f"it has more than {MOST} characters"))
        except Exception as failure:
            read.put(failure)

    threading.Thread(target=put, name="topics-profile", daemon=True).start()
    try:
        found = read.get(timeout=READ_SECONDS)
    except Empty:
        raise OSError(f"no answer within {READ_SECONDS:g} s") from None
    if isinstance(found, Exception):
        raise found
    return found


def serve(profile: str, questions: int, answers: CredentialAnswers) -> None:
    """Obtains the credentials of a profile each time that a pipe says so, until it ends."""
    thread = threading.Thread(
        target=_serve, args=(profile, questions, answers), name="topics-credentials", daemon=True
    )
    thread.start()


def _serve(profile: str, questions: int, answers: CredentialAnswers) -> None:
    try:
        while os.read(questions, 1) == ASK:
            # What hangs is left behind, and the next question is answered by another thread.
            thread = threading.Thread(target=_answer, args=(profile, answers), daemon=True)
            try:
                thread.start()
            except RuntimeError as failure:
                answers.fail(str(failure))
    finally:
        os.close(questions)


def _answer(profile: str, answers: CredentialAnswers) -> None:
    try:
        session = importlib.import_module("botocore.session").Session(profile=profile)
        credentials = session.get_credentials()
        if credentials is None:
            answers.fail("botocore finds none")
            return
        keys = credentials.get_frozen_credentials()
        # botocore has no other name for it; keys that do not expire lack it.
        end = getattr(credentials, "_expiry_time", None)
        left = None if end is None else (end - datetime.now(UTC)).total_seconds()
        answers.put(keys.access_key, keys.secret_key, keys.token, left)
    except Exception as failure:
        answers.fail(f"{type(failure).__name__}: {failure}".rstrip(". "))
