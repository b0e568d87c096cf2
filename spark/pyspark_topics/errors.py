"""The errors of this package, with their causes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class TopicsError(Exception):
    """A refusal with the server's stable code. Survives pickling between Spark's processes."""

    def __init__(
        self,
        message: str,
        code: str = "invalid_request",
        detail: Mapping[str, Any] | None = None,
        retry_after: float = 0.0,
    ) -> None:
        super().__init__(message, code, detail, retry_after)
        self.message = message
        self.code = code
        self.detail = dict(detail or {})
        self.retry_after = retry_after

    def __str__(self) -> str:
        return f"{self.message} [{self.code}]"


class InvalidOption(TopicsError):
    """An invalid option, schema or filter."""


class DataLoss(TopicsError):
    """Records that should have been read are lost."""


class Interrupted(TopicsError):
    """A stream or an answer ended early: request it again."""
