"""The docs page in a real browser that reaches no host but ours."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.serving import Server, serving

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine: apt-get install chromium")


@pytest.fixture(scope="module")
def scripted_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    environment = {"OMNIHEAR_ENGINE_BACKEND": "scripted"}
    with serving(tmp_path_factory.mktemp("scripted"), environment=environment) as running:
        yield running


def test_swagger_ui_shows_every_route(scripted_server: Server, tmp_path: Path) -> None:
    command = [
        str(CHROMIUM),
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        f"--user-data-dir={tmp_path}",
        "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE localhost, EXCLUDE 127.0.0.1",
        "--virtual-time-budget=20000",
        "--enable-logging=stderr",
        "--dump-dom",
        f"{scripted_server.url}/docs",
    ]

    browser = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)
    page = browser.stdout

    for route in ("/v1/transcribe", "/v1/audio/transcriptions", "/v1/models", "/v1/engine", "/health/ready"):
        assert f'data-path="{route}"' in page
    assert "Failed to load API definition" not in page
    complaints = [line for line in browser.stderr.splitlines() if "CONSOLE" in line]
    assert not complaints, complaints
