"""Pure ASGI around every request: its id, count, line of access log, headers, an answer in any case, and its end."""

import logging
import re
import time
import uuid
from typing import TYPE_CHECKING, Any, Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app import errors
from app.logs import REQUEST_ID, escape
from app.metrics import Metrics

if TYPE_CHECKING:
    from app.runtime import Runtime

logger = logging.getLogger("app.access")

REQUEST_ID_HEADER: Final = "X-Request-ID"
_ACCEPTABLE_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
# Of every answer that does not bring its own: no browser guesses its type, runs or frames it, or tells others of it.
_SAFE_HEADERS: Final = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
}
UNMATCHED: Final = "unmatched"


class Interruption:
    """Lets requests learn of the end of the service wherever they wait for their client.

    See `LifeCycle.interrupting`.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection; anything but HTTP passes through."""
        if scope["type"] == "http":
            runtime: Runtime = scope["state"]["runtime"]
            receive = runtime.life.interrupting(receive)
        await self._app(scope, receive, send)


class RequestContext:
    """Names each request, and counts and logs how it ended; the caller's id is kept where it is harmless.

    What fails after its status has been sent leaves the one it would have had in `state["late_status"]`. The key of a
    request leaves its holder in `state["client"]`, an error its code in `state["error_code"]`, and transcripts the
    length of their audio in `state["audio_seconds"]`.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection; anything but HTTP passes through."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get(REQUEST_ID_HEADER, "")
        request_id = given if _ACCEPTABLE_ID.fullmatch(given) else uuid.uuid4().hex
        state = scope.setdefault("state", {})
        state |= {"request_id": request_id, "client": None}
        begun = time.monotonic()
        status = 500  # what the client sees of an exception that nobody answered

        async def send_named(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers[REQUEST_ID_HEADER] = request_id
                for name, value in _SAFE_HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        token = REQUEST_ID.set(request_id)
        try:
            await self._app(scope, receive, send_named)
        finally:
            self._note(scope, state.get("late_status", status), time.monotonic() - begun)
            REQUEST_ID.reset(token)

    def _note(self, scope: Scope, status: int, seconds: float) -> None:
        route, state = route_of(scope), scope["state"]
        self._metrics.ended(route, status, state.get("error_code", ""), seconds)
        audio_seconds = state.get("audio_seconds")
        fields: dict[str, Any] = {
            "request_id": state["request_id"],
            "method": scope["method"],
            "route": route,
            "status": status,
            "milliseconds": round(seconds * 1000, 1),
            "audio_seconds": audio_seconds,
            "client": state["client"],
        }
        logger.log(
            # Probes come every few seconds and would drown the rest.
            logging.DEBUG if route.startswith("/health/") or route == "/metrics" else logging.INFO,
            "%s %s %d %.1f ms, %s s of audio, client %s",
            escape(scope["method"]),
            route,
            status,
            seconds * 1000,
            "-" if audio_seconds is None else f"{audio_seconds:.1f}",
            state["client"] or "-",
            extra=fields,
        )


class LastResort:
    """Answers what no handler expected, as any other error and within the headers of the middleware around it.

    Starlette's own last resort stands outside of all middleware, where no page of another origin may read the answer.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on; an answer that has begun is left to the server, which closes the connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun = False

        async def send_noted(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self._app(scope, receive, send_noted)
        except Exception as error:
            if begun:
                raise
            response = await errors.answer(Request(scope, receive), error)
            await response(scope, receive, send)


def route_of(scope: Scope) -> str:
    """The path's template, such as "/v1/transcribe": few, and none holds what a caller made up."""
    return getattr(scope.get("route"), "path", UNMATCHED)
