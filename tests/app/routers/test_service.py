import asyncio

from engine.scripted import ScriptedEngine
from tests.conftest import Client, MakeClient


async def test_models_lists_the_model_and_its_aliases(scripted_client: Client) -> None:
    body = (await scripted_client.get("/v1/models")).json()

    assert body["object"] == "list"
    assert [model["id"] for model in body["data"]] == ["omni-tiny-en", "whisper-1"]
    assert all(model["object"] == "model" and model["created"] > 0 for model in body["data"])


async def test_readiness_follows_the_start(make_client: MakeClient) -> None:
    gate = asyncio.Event()
    async with make_client(ScriptedEngine(start_gate=gate), wait=False) as client:
        live = await client.get("/health/live")
        loading = await client.get("/health/ready")
        while loading.json()["phase"] == "starting":
            loading = await client.get("/health/ready")
        gate.set()
        ready = loading
        while ready.status_code != 200:
            ready = await client.get("/health/ready")

    assert live.status_code == 200
    assert loading.status_code == 503
    assert loading.json() == {"ready": False, "phase": "loading the script", "progress": 0.5}
    assert int(loading.headers["Retry-After"]) > 0
    assert ready.json() == {"ready": True, "phase": "ready", "progress": 1.0}


async def test_engine_says_what_serves(scripted_client: Client) -> None:
    body = (await scripted_client.get("/v1/engine")).json()

    assert body["profile"] == "cpu"
    assert body["ready"] is True
    assert body["backend"] == "scripted"
    assert "omnihear" in body["versions"]
