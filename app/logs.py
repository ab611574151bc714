"""Logging: one record a line, to standard error, and nothing in it that callers have sent.

Records quote no file name, key, prompt or transcript. What could slip through is held back here: messages of
exceptions, which may quote anything, are left out unless they are asked for, and control characters are written as
escapes, so that no text can look like another record or command a terminal.
"""

import logging
import logging.config
import re
import traceback
from contextvars import ContextVar
from types import TracebackType
from typing import Final, Literal

from opentelemetry import trace
from pythonjsonlogger.json import JsonFormatter

NO_REQUEST: Final = "-"
REQUEST_ID: Final[ContextVar[str]] = ContextVar("request_id", default=NO_REQUEST)
"""Of the request that is being served; set by the middleware, and known to the tasks and threads that serve it."""

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")

_ExceptionInfo = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]


def configure(level: str, *, style: Literal["line", "json"] = "line", content: bool = False) -> None:
    """Set up the service's loggers; vLLM keeps its own.

    Args:
        level: of the records that are written.
        style: "line" for people, "json" for programs.
        content: write the messages of exceptions.
    """
    logging.config.dictConfig(
        {
            "version": 1,
            "disable_existing_loggers": False,
            "filters": {"request": {"()": RequestFilter}},
            "formatters": {
                "line": {"()": _Line, "content": content},
                "json": {"()": _Json, "content": content},
            },
            "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": style, "filters": ["request"]}},
            "loggers": {
                name: {"level": level.upper(), "handlers": ["stderr"], "propagate": False}
                for name in ("app", "engine", "uvicorn")
            },
        }
    )


class RequestFilter(logging.Filter):
    """Adds the request's id and, where one is recorded, its trace."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Let every record pass."""
        record.request_id = REQUEST_ID.get()
        context = trace.get_current_span().get_span_context()
        if context.is_valid:
            record.trace_id = trace.format_trace_id(context.trace_id)
        return True


class _Line(logging.Formatter):
    def __init__(self, *, content: bool) -> None:
        super().__init__("%(asctime)s %(levelname)-8s %(name)s: %(message)s")
        self._content = content

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  # logging's name
        request_id = getattr(record, "request_id", NO_REQUEST)
        text = super().formatMessage(record)
        return escape(text if request_id == NO_REQUEST else f"{text} [{request_id}]")

    def formatException(self, ei: _ExceptionInfo) -> str:  # noqa: N802  # logging's name
        return _describe(ei[1], content=self._content) if ei[1] is not None else ""


class _Json(JsonFormatter):
    def __init__(self, *, content: bool) -> None:
        super().__init__(
            "%(levelname)s %(name)s %(message)s",
            timestamp=True,
            rename_fields={"levelname": "level", "name": "logger"},
        )
        self._content = content

    def formatException(self, ei: _ExceptionInfo) -> str:  # noqa: N802  # logging's name
        return _describe(ei[1], content=self._content) if ei[1] is not None else ""


def escape(text: str) -> str:
    r"""Text on one line, with control and direction characters as `\x1b` or `\u202e`."""
    return _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def _describe(error: BaseException, *, content: bool, seen: frozenset[int] = frozenset()) -> str:
    """As Python prints an exception, without its message; an OSError keeps the words for its number."""
    seen |= {id(error)}
    before = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    lines = [_describe(before, content=content, seen=seen)] if before is not None and id(before) not in seen else []
    message = str(error) if content else getattr(error, "strerror", None) or ""
    lines += [line.rstrip() for line in traceback.format_tb(error.__traceback__)]
    lines.append(f"{type(error).__name__}{': ' if message else ''}{escape(message)}")
    if isinstance(error, BaseExceptionGroup):
        lines += [_describe(each, content=content, seen=seen) for each in error.exceptions]
    return "\n".join(lines)
