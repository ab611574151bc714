"""Waiting for what nothing announces."""

import asyncio
from collections.abc import Callable


async def eventually(condition: Callable[[], object], *, seconds: float) -> None:
    """Return once a condition holds that nothing announces, such as a file that is gone.

    Raises:
        TimeoutError: it does not.
    """
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110  # there is no event to wait for
            await asyncio.sleep(0.01)
