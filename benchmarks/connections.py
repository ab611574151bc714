"""A connection for each caller.

httpx keeps its connections in one pool and looks at all of them for each request: with 128 callers that takes this
process 25 ms a request, more than a server needs for it, and what is measured then is httpx.
"""

from collections.abc import AsyncIterator, Callable

import httpx

_ONE = httpx.Limits(max_connections=1)


class Connections(httpx.AsyncBaseTransport):
    """Gives each request a connection that nobody uses, or a new one.

    Attributes:
        opened: connections so far.
    """

    def __init__(self) -> None:
        self.opened = 0
        self._context = httpx.create_ssl_context()  # takes 20 ms, so all share it
        self._all: list[httpx.AsyncHTTPTransport] = []
        self._idle: list[httpx.AsyncHTTPTransport] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request; its connection is free again when the response is closed."""
        transport = self._idle.pop() if self._idle else self._open()
        try:
            response = await transport.handle_async_request(request)
        except BaseException:
            self._idle.append(transport)
            raise
        assert isinstance(response.stream, httpx.AsyncByteStream)
        response.stream = _Stream(response.stream, lambda: self._idle.append(transport))
        return response

    def _open(self) -> httpx.AsyncHTTPTransport:
        self.opened += 1
        transport = httpx.AsyncHTTPTransport(verify=self._context, limits=_ONE, trust_env=False)
        self._all.append(transport)
        return transport

    async def aclose(self) -> None:
        """Close all."""
        for transport in self._all:
            await transport.aclose()


class _Stream(httpx.AsyncByteStream):
    """Of a response; says once when it is closed."""

    def __init__(self, stream: httpx.AsyncByteStream, closed: Callable[[], None]) -> None:
        self._stream = stream
        self._closed: Callable[[], None] | None = closed

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for part in self._stream:
            yield part

    async def aclose(self) -> None:
        await self._stream.aclose()
        if self._closed is not None:
            closed, self._closed = self._closed, None
            closed()
