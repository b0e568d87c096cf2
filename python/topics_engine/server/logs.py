"""The log of `topics serve`: text or JSON lines on standard error, and the audit log."""

from __future__ import annotations

import json
import logging
import logging.handlers
import os
from datetime import UTC, datetime
from typing import Any

from ..asgi.audit import audit, current_request

TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class JsonFormatter(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if request_id := current_request.get():
            line["request_id"] = request_id
        line |= getattr(record, "fields", {})
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


class TextFormatter(logging.Formatter):
    """Text, with the request's id where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        request_id = current_request.get()
        text = super().format(record)
        if not request_id:
            return text
        first, newline, rest = text.partition("\n")
        return f"{first} [request {request_id}]{newline}{rest}"


class AuditFile(logging.handlers.WatchedFileHandler):
    """A file that only its owner may read. It is opened again when another program has moved it
    away.
    """

    def _open(self) -> Any:
        def private(path: str, flags: int) -> int:
            return os.open(path, flags, 0o600)

        return open(self.baseFilename, self.mode, encoding=self.encoding, opener=private)


def configure(format: str, audit_log: str) -> None:
    """Sets up the handlers of the process.

    Args:
        format: `text` or `json`.
        audit_log: a file; `-` writes to the other log; empty writes none.

    Raises:
        OSError: the file cannot be opened.
    """
    formatter: logging.Formatter = JsonFormatter() if format == "json" else TextFormatter(TEXT)
    handler = logging.StreamHandler()
    handler.setFormatter(formatter)
    logging.basicConfig(handlers=[handler])
    audit.setLevel(logging.INFO if audit_log else logging.CRITICAL)
    if audit_log and audit_log != "-":
        file = AuditFile(audit_log, encoding="utf-8")
        file.setFormatter(formatter)
        audit.addHandler(file)
        audit.propagate = False
