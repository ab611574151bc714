"""A few hundred hostile inputs on every run; `python -m benchmarks.hostile` sends ten thousand."""

import asyncio

import pytest

from benchmarks.servers import Server
from tests.audio_factory import FORMATS
from tests.conftest import Figure
from tests.hostile import layouts, mutations, requests
from tests.hostile.campaign import Outcome, attack
from tests.hostile.schema import fuzz

FILES = 500
RAW = 200
DOCUMENTED = 8


@pytest.mark.timeout(300)
def test_hostile_inputs_are_answered_and_a_clean_clip_does_not_notice(service: Server, figure: Figure) -> None:
    outcome = asyncio.run(attack(service.url, mutations.inputs(FILES), requests.examples(RAW)))
    with service.client() as client:
        ready = client.get("/health/ready")

    seconds, source = outcome.slowest
    figure(
        f"{outcome.sent} hostile inputs: {len(outcome.findings)} findings, slowest {seconds:.1f} s ({source}); a clean "
        f"clip beside them {outcome.clean_texts.total()} times, {len(outcome.clean_texts)} different answers"
    )
    assert outcome.findings == []
    assert outcome.sent == FILES + RAW
    assert len(outcome.clean_texts) == 1
    assert "audio of" in next(iter(outcome.clean_texts))
    assert ready.status_code == 200
    assert service.process.poll() is None


@pytest.mark.timeout(300)
def test_requests_made_from_the_document_are_answered_as_it_says(service: Server, figure: Figure) -> None:
    outcome = Outcome()
    fuzz(service.url, DOCUMENTED, outcome)

    figure(f"{outcome.sent} requests made from the OpenAPI document: {len(outcome.findings)} findings")
    assert outcome.findings == []
    assert outcome.sent >= 6 * DOCUMENTED  # an operation without parameters has one request only


def test_every_advertised_container_is_mutated() -> None:
    assert set(FORMATS) <= set(layouts.READERS)


@pytest.mark.parametrize("container", layouts.READERS)
def test_layouts_find_their_way_through_the_whole_file(container: str) -> None:
    """A reader that loses its way would mutate the same few bytes over and over."""
    data, places = mutations.original(container)
    assert len(places.numbers) >= 5
    assert max(end for _, end in places.units) == len(data)
    assert all(0 <= start < end <= len(data) for start, end in places.units)


@pytest.mark.parametrize("kind", mutations.MUTATIONS)
def test_mutations_change_files_and_can_be_made_again(kind: str) -> None:
    made = [mutations.mutated(container, kind, seed) for container in layouts.READERS for seed in range(3)]
    changed = sum(each.data != mutations.original(each.container)[0] for each in made)
    assert changed > 0.8 * len(made)
    assert made[-1] == mutations.mutated(made[-1].container, kind, 2)
    assert len({each.data for each in made}) > 0.8 * len(made)
    assert max(len(each.data) for each in made) < 2 * mutations.LARGEST + 100_000
