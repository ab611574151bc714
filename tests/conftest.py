"""Fixtures and settings for all tests."""

import pytest
from hypothesis import settings

# The same examples in every run, and no limit on their time: machines differ, failures should not.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"
