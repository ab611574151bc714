import re

from app.openapi import document
from engine.config import ROOT
from tests.conftest import Client


def test_the_committed_document_is_the_one_that_is_served() -> None:
    assert document() == (ROOT / "docs" / "openapi.json").read_text(encoding="utf-8")


async def test_every_route_says_what_it_answers(scripted_client: Client) -> None:
    paths = (await scripted_client.get("/openapi.json")).json()["paths"]

    assert set(paths) == {
        "/v1/transcribe",
        "/v1/transcribe/batch",
        "/v1/audio/transcriptions",
        "/v1/audio/translations",
        "/v1/models",
        "/v1/engine",
        "/health/live",
        "/health/ready",
        "/metrics",
    }
    for operations in paths.values():
        for operation in operations.values():
            assert operation["summary"]
            assert operation["description"]
            assert "200" in operation["responses"]
    for route in ("/v1/transcribe", "/v1/audio/transcriptions"):
        assert set(paths[route]["post"]["responses"]) >= {"400", "401", "413", "415", "422", "429", "503", "504"}


async def test_the_docs_page_needs_no_other_host(scripted_client: Client) -> None:
    page = (await scripted_client.get("/docs")).text
    links = re.findall(r'(?:src|href)="([^"]+)"', page)

    assert links
    for link in links:
        assert link.startswith("/docs/static/")
        assert (await scripted_client.get(link)).status_code == 200
