"""Logs: one JSON object per line on stderr, with trace ids and without text of users."""

from __future__ import annotations

import json
import logging
import re
import sys
import traceback
from datetime import UTC, datetime
from typing import Final

from opentelemetry import trace

from evenmesh_kit.security import audit
from evenmesh_kit.settings import ServiceSettings, unread_variables

TEXT_KEY: Final = "user_text"
"""``extra`` key for text of users, ``log.info("no answer", extra={"user_text": query})``; usually dropped."""

_UNSEEN: Final = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Controls of terminals, ends of lines, changes of direction and halves of characters, which JSON leaves as
they are: in a name they would change how a line looks, or that it can be written."""
_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    """Formats a record as one JSON line.

    Args:
        service: name of the service.
        log_text: whether text of users may appear: the ``user_text`` extra, and messages of exceptions, which
        often
            quote their input. Otherwise an exception is logged as its type and its stack.
    """

    def __init__(self, service: str, *, log_text: bool = False) -> None:
        super().__init__()
        self._service = service
        self._log_text = log_text

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "service": self._service,
            "logger": record.name,
            "message": record.getMessage(),
        }
        span = trace.get_current_span().get_span_context()
        if span.is_valid:
            line["trace_id"] = trace.format_trace_id(span.trace_id)
            line["span_id"] = trace.format_span_id(span.span_id)
        for key, value in vars(record).items():
            if key not in _STANDARD and (self._log_text or key != TEXT_KEY):
                line[key] = value
        # Not only None: who logs with exc_info=False leaves that in the record.
        if record.exc_info and record.exc_info[1] is not None:
            line["exception"] = self._exception(record.exc_info[1])
        text = json.dumps(line, ensure_ascii=False, default=repr)
        return _UNSEEN.sub(lambda found: f"\\u{ord(found[0]):04x}", text)

    def _exception(self, error: BaseException) -> str:
        if self._log_text:
            return "".join(traceback.format_exception(error))
        parts: list[str] = []
        cause: BaseException | None = error
        while cause is not None:
            frames = "".join(traceback.format_tb(cause.__traceback__))
            parts.append(f"{frames}{type(cause).__module__}.{type(cause).__qualname__}")
            cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
        return "\ncaused by:\n".join(parts)


def configure(name: str, settings: ServiceSettings) -> None:
    """Send logs to stderr: ``evenmesh`` from ``log_level`` on, its audit log always, others from WARNING.

    The first ones name variables of the environment that are misspelt.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter(name, log_text=settings.log_text))
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("evenmesh").setLevel(settings.log_level)
    logging.getLogger(audit.LOGGER).setLevel(logging.INFO)
    logging.captureWarnings(capture=True)
    for variable in unread_variables(settings):
        logging.getLogger("evenmesh.kit.settings").warning("no setting reads the variable %s", variable)
