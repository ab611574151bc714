"""Answers that outlive their handler: work goes on while the client listens, and ends when it leaves."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, TypeVar

from fastapi.sse import format_sse_event
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from app.errors import explain
from app.schemas.events import ErrorEvent
from app.transcription.exceptions import ClientGoneError

Result = TypeVar("Result")

SendEvent = Callable[[BaseModel], Awaitable[None]]

_HEADERS: Final = {
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",  # nginx and those that follow it pass each event on at once
}


async def while_connected(receive: Receive, work: Coroutine[Any, Any, Result]) -> Result:
    """Await `work`, and cancel it when the client closes the connection.

    Args:
        receive: of a request whose body has been read.

    Raises:
        ClientGoneError: the client left first.
        Exception: what `receive` raises because the service ends.
    """
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_disconnect(receive))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        leaving.result()
        msg = "the client closed the connection before the answer was complete"
        raise ClientGoneError(msg)
    finally:
        working.cancel()
        leaving.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):
    """Server-sent events (WHATWG HTML, 9.2), one for each model that `work` sends and one for the model it returns.

    The status is sent with the first event, or with the first comment that keeps the connection alive: an exception
    before that is answered as on any other route. Later ones become the last event.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        request: Request,
        work: Callable[[SendEvent], Coroutine[Any, Any, BaseModel]],
        *,
        keep_alive_seconds: float,
    ) -> None:
        super().__init__(headers=_HEADERS)
        del self.headers["Content-Length"]
        self._request = request
        self._work = work
        self._keep_alive_seconds = keep_alive_seconds
        self._sending = asyncio.Lock()  # the comment and the first event may both want to begin
        self._started = False
        self._sent = 0.0  # when, on the monotonic clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Do the work and write what comes of it."""
        try:
            await while_connected(receive, self._run(send))
        except ClientGoneError:
            if not self._started:
                raise
            scope["state"] |= {"late_status": 499, "error_code": ClientGoneError.code}
        except Exception as error:  # the service ends: the work could not say so itself
            if not self._started:
                raise
            await self._write(send, self._last_words(error))
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _run(self, send: Send) -> None:
        async def send_event(model: BaseModel) -> None:
            await self._write(send, format_sse_event(data_str=model.model_dump_json()))

        working = asyncio.ensure_future(self._work(send_event))
        try:
            await self._keep_alive(send, working)
            await send_event(working.result())
        except Exception as error:
            if not self._started:
                raise
            await self._write(send, self._last_words(error))
        finally:
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _keep_alive(self, send: Send, working: "asyncio.Future[BaseModel]") -> None:
        """Return once the work is done; write a comment whenever nothing has been written for a while."""
        self._sent = time.monotonic()
        while not working.done():
            quiet = time.monotonic() - self._sent
            if quiet >= self._keep_alive_seconds:
                await self._write(send, format_sse_event(comment="still working"))
                continue
            await asyncio.wait((working,), timeout=self._keep_alive_seconds - quiet)

    async def _write(self, send: Send, event: bytes) -> None:
        async with self._sending:
            if not self._started:
                self._started = True
                await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await send({"type": "http.response.body", "body": event, "more_body": True})
            self._sent = time.monotonic()

    def _last_words(self, error: Exception) -> bytes:
        fault = explain(self._request, error)
        self._request.scope["state"] |= {"late_status": fault.status, "error_code": fault.detail.code}
        return format_sse_event(event="error", data_str=ErrorEvent(error=fault.detail).model_dump_json())
