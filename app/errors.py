"""From exceptions to answers: one table, one envelope.

A caller's fault is a 4xx that names the field, the limit and the remedy; ours is a 5xx that gives nothing away.
"""

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse

from app.keys import KeyRefusedError
from app.schemas.errors import ErrorDetail, ErrorEnvelope, LimitDetail
from app.transcription import exceptions as domain
from engine import interface as engine

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Rule:
    """How a family of exceptions is answered; `code` and `message` where the exception's own shall not show."""

    status: int
    code: str | None = None
    message: str | None = None
    retry_after: int | None = None  # seconds, where the exception does not say
    close: bool = False  # the connection, after the answer


# Looked up along the exception's class hierarchy, so that a base class stands for its family.
RULES: dict[type[Exception], _Rule] = {
    domain.MalformedRequestError: _Rule(400),
    KeyRefusedError: _Rule(401),
    domain.ClientGoneError: _Rule(499),  # nginx's number; seen by the log alone
    domain.SlowUploadError: _Rule(408, close=True),  # RFC 9110, 15.5.9
    domain.InvalidFieldError: _Rule(422),
    domain.UnknownModelError: _Rule(404),
    domain.TooLargeError: _Rule(413),
    domain.NotAudioError: _Rule(415),
    domain.CorruptAudioError: _Rule(415),
    domain.NoAudioStreamError: _Rule(422),
    domain.EmptyAudioError: _Rule(422),
    domain.InvalidInputError: _Rule(400),
    domain.OverloadedError: _Rule(429),
    domain.NotReadyError: _Rule(503),
    domain.StorageFullError: _Rule(507),
    domain.PreparationTimeoutError: _Rule(504),
    domain.InferenceTimeoutError: _Rule(504),
    domain.UnavailableError: _Rule(500),
    engine.EngineNotReadyError: _Rule(503, "not_ready", "the engine is not ready; ask again soon", retry_after=5),
    engine.EngineDeadError: _Rule(503, "engine_dead", "the engine has failed and is being replaced", retry_after=30),
    engine.RequestRefusedError: _Rule(422, "request_refused"),
    engine.GenerationError: _Rule(500, "engine_failed", "the engine failed on this request; others are not affected"),
    Exception: _Rule(500, "internal_error", "an unexpected error; quote the request id to the operator"),
}

_OF_THE_SERVICE = (domain.NotReadyError, engine.EngineDeadError)  # logged once, and not for each request
_REFUSALS = (429, 503)

_HTTP_CODES = {404: "not_found", 405: "method_not_allowed"}


def install(app: FastAPI) -> None:
    """Make `app` answer every exception through the table."""
    app.add_exception_handler(HTTPException, _answer_http)
    app.add_exception_handler(RequestValidationError, _answer_validation)
    for family in RULES:
        app.add_exception_handler(family, answer)


@dataclass(frozen=True, slots=True)
class Fault:
    """An exception as callers learn of it.

    Attributes:
        retry_after: seconds after which asking again makes sense, None where it does not.
        headers: further ones of the answer.
    """

    status: int
    detail: ErrorDetail
    retry_after: float | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


def explain(request: Request, error: Exception) -> Fault:
    """Look up what callers learn of an exception, and log it where it is ours."""
    rule = next(RULES[cls] for cls in type(error).__mro__ if cls in RULES)
    code = rule.code or str(getattr(error, "code", "error"))
    if rule.status in _REFUSALS:
        request.state.runtime.metrics.refused(code)
    if rule.status >= 500 and not isinstance(error, _OF_THE_SERVICE):
        logger.error("%s while serving %s", type(error).__name__, request.url.path, exc_info=error)
    message = rule.message or str(error)
    limit = getattr(error, "limit", None)
    detail = ErrorDetail(
        code=code,
        type=_type(rule.status),
        message=message[:1].upper() + message[1:],
        param=getattr(error, "param", None),
        limit=LimitDetail(name=limit.name, value=limit.value, setting=limit.setting) if limit else None,
        request_id=request.scope["state"]["request_id"],
    )
    headers = getattr(error, "headers", None) or ({"Connection": "close"} if rule.close else {})
    return Fault(rule.status, detail, getattr(error, "retry_after", rule.retry_after), headers)


async def answer(request: Request, error: Exception) -> JSONResponse:
    """What callers get of an exception."""
    return _respond(request, explain(request, error))


async def _answer_http(request: Request, error: Exception) -> JSONResponse:
    """Unknown routes and methods."""
    assert isinstance(error, HTTPException)
    detail = ErrorDetail(
        code=_HTTP_CODES.get(error.status_code, "http_error"),
        type=_type(error.status_code),
        message=f"{request.method} {request.url.path}: {error.detail}",
        request_id=request.scope["state"]["request_id"],
    )
    return _respond(request, Fault(error.status_code, detail, headers=error.headers or {}))


async def _answer_validation(request: Request, error: Exception) -> JSONResponse:
    """Parameters that FastAPI itself has checked."""
    assert isinstance(error, RequestValidationError)
    fault = error.errors()[0]
    param = str(fault["loc"][-1])
    detail = ErrorDetail(
        code="invalid_field",
        type=_type(422),
        message=f"`{param}`: {fault['msg']}",
        param=param,
        request_id=request.scope["state"]["request_id"],
    )
    return _respond(request, Fault(422, detail))


def _type(status: int) -> str:
    return "invalid_request_error" if status < 500 else "server_error"


def _respond(request: Request, fault: Fault) -> JSONResponse:
    request.scope["state"]["error_code"] = fault.detail.code
    headers = {"X-Request-ID": fault.detail.request_id, **fault.headers}
    if fault.retry_after is not None:
        headers["Retry-After"] = str(max(1, math.ceil(fault.retry_after)))
    return JSONResponse(ErrorEnvelope(error=fault.detail).model_dump(), status_code=fault.status, headers=headers)
