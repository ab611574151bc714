"""Waiting for what nothing announces."""

import asyncio
from collections.abc import Callable
from inspect import isawaitable


async def eventually(condition: Callable[[], object], *, seconds: float) -> None:
    """Return once a condition holds that nothing announces, such as a file that is gone.

    Args:
        condition: tells at once, or when awaited.

    Raises:
        TimeoutError: it does not.
    """
    async with asyncio.timeout(seconds):
        while not (await told if isawaitable(told := condition()) else told):  # noqa: ASYNC110  # there is no event
            await asyncio.sleep(0.01)
