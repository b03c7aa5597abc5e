"""Pushes through a router to writers that do as they are told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from support.clock.virtual_time import run_virtually
from support.segment.writers_as_told import Fleet

SERVICES = [f"service-{n}" for n in range(24)]


def run_story(fleet: Fleet, story: Callable[[Fleet], Coroutine[Any, Any, None]]) -> Fleet:
    """Tell a story, then close the router; nothing may be left of it."""

    async def whole() -> None:
        try:
            await story(fleet)
        finally:
            await fleet.router.close()
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert not left

    run_virtually(whole())
    return fleet


def push_all(fleet: Fleet, *services: str, times: int = 1) -> Fleet:
    async def story(fleet: Fleet) -> None:
        for _ in range(times):
            await fleet.push(*services)

    return run_story(fleet, story)
