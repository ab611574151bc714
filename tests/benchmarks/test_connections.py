import asyncio

import httpx
import pytest

from benchmarks.connections import Connections
from tests.live import live


async def test_every_caller_has_a_connection_and_keeps_it() -> None:
    connections = Connections()
    async with live() as service, httpx.AsyncClient(transport=connections, base_url=service.base_url) as client:
        for _ in range(3):
            answers = await asyncio.gather(*(client.get("/v1/models") for _ in range(12)))
            assert {answer.status_code for answer in answers} == {200}

    assert connections.opened == 12


async def test_a_connection_that_broke_is_made_anew_and_one_that_is_read_is_not_shared() -> None:
    connections = Connections()
    async with live() as service, httpx.AsyncClient(transport=connections, base_url=service.base_url) as client:
        async with client.stream("GET", "/openapi.json") as first:
            assert (await client.get("/v1/models")).status_code == 200
            assert (await first.aread()).startswith(b"{")
        assert connections.opened == 2
        for transport in connections._all:
            await transport.aclose()
        assert (await client.get("/v1/models")).status_code == 200

    assert connections.opened == 2


async def test_nobody_there_is_an_error_like_any_other() -> None:
    async with httpx.AsyncClient(transport=Connections(), base_url="http://127.0.0.1:9") as client:
        for _ in range(2):
            with pytest.raises(httpx.ConnectError):
                await client.get("/")
