"""Pure ASGI: a request id for every request, one line of access log, and an end for those that outlast the service."""

import logging
import re
import time
import uuid
from typing import TYPE_CHECKING, Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

if TYPE_CHECKING:
    from app.runtime import Runtime

logger = logging.getLogger("app.access")

REQUEST_ID_HEADER: Final = "X-Request-ID"
_ACCEPTABLE_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


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
    """Names each request and logs how it ended; the caller's id is kept where it is harmless.

    What fails after its status has been sent leaves the one it would have had in `state["late_status"]`.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection; anything but HTTP passes through."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get(REQUEST_ID_HEADER, "")
        request_id = given if _ACCEPTABLE_ID.fullmatch(given) else uuid.uuid4().hex
        scope.setdefault("state", {})["request_id"] = request_id
        begun = time.monotonic()
        status = 500  # what the client sees of an exception that nobody answered

        async def send_named(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)[REQUEST_ID_HEADER] = request_id
            await send(message)

        try:
            await self._app(scope, receive, send_named)
        finally:
            # Probes come every few seconds and would drown the rest.
            level = logging.DEBUG if scope["path"].startswith("/health/") else logging.INFO
            logger.log(
                level,
                "%s %s %d %.3f s %s",
                scope["method"],
                scope["path"].encode("unicode_escape").decode(),
                scope["state"].get("late_status", status),
                time.monotonic() - begun,
                request_id,
            )
