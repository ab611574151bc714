from collections.abc import Iterator

import pytest

from benchmarks.servers import Server, omnihear, running
from tests.hostile.campaign import ENVIRONMENT


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The real service on the scripted engine, as `omnihear serve` starts it, with limits that make hangs show."""
    with running(omnihear(environment=ENVIRONMENT), tmp_path_factory.mktemp("hostile")) as server:
        yield server
