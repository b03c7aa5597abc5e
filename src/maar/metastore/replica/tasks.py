"""Runs several tasks until the first of them ends, then cancels the others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


async def first_ended(*works: Callable[[], Coroutine[Any, Any, object]]) -> None:
    """When this returns or raises, none of them runs any more; it raises what the first raised."""
    tasks = [asyncio.create_task(work()) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()
