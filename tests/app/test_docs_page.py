import base64
import hashlib
import re

from app.main import create_app
from engine.scripted import ScriptedEngine
from tests.conftest import Client, lifespan_client, settings_with


async def test_only_the_pages_own_scripts_run(scripted_client: Client) -> None:
    answer = await scripted_client.get("/docs")
    policy = answer.headers["Content-Security-Policy"]
    (inline,) = re.findall(r"<script>(.*?)</script>", answer.text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(inline.encode()).digest()).decode()

    scripts = next(part for part in policy.split("; ") if part.startswith("script-src "))
    assert scripts == f"script-src 'self' 'sha256-{digest}'"
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy


async def test_the_policy_follows_the_page_behind_a_prefix() -> None:
    app = create_app(settings_with(), engine=ScriptedEngine())
    app.root_path = "/speech"  # as uvicorn's --root-path sets it
    async with lifespan_client(app) as client:
        answer = await client.get("/speech/docs")

    (inline,) = re.findall(r"<script>(.*?)</script>", answer.text, re.DOTALL)
    assert "/speech/openapi.json" in inline
    digest = base64.b64encode(hashlib.sha256(inline.encode()).digest()).decode()
    assert f"'sha256-{digest}'" in answer.headers["Content-Security-Policy"]
