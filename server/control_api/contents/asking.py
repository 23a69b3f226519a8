"""Requests of this room's routes to the controller and to stores: pages of names, and the lengths of segments.

Invariant: an answer waits at most `_MEASURE_S` for stores and omits values unknown by then.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Final, TypeVar

from fastapi import Query

from segstore.server.controller import SegmentStoreFailed

log = logging.getLogger(__name__)

T = TypeVar("T")

_MEASURE_S: Final = 5.0
After = Annotated[str, Query(max_length=255, description="`next` of the previous page.")]
Limit = Annotated[int, Query(ge=1, le=500, description="Maximum number of entries.")]


def named(names: Callable[[str], tuple[list[str], str]], after: str, limit: int) -> tuple[list[str], str | None]:
    """Returns the first `limit` names after `after`, and the last of these names if there are more.

    names: returns the page of names after a name, and the page's last name; an empty page at the end.
    """
    listed: list[str] = []
    while len(listed) <= limit:
        page, after = names(after)
        if not page:
            break
        listed += page
    return listed[:limit], listed[limit - 1] if len(listed) > limit else None


async def answers(ask: Callable[[str], Awaitable[T]], segments: Sequence[str]) -> dict[str, T]:
    """Asks about all segments concurrently. Returns the answers, without segments whose stores do not answer."""
    known: dict[str, T] = {}

    async def one(segment: str) -> None:
        try:
            known[segment] = await ask(segment)
        except SegmentStoreFailed as error:
            log.debug("nothing is known about %s: %s", segment, error)

    try:
        async with asyncio.timeout(_MEASURE_S), asyncio.TaskGroup() as group:
            for segment in segments:
                group.create_task(one(segment), name=f"asking about {segment}")
    except TimeoutError:
        log.debug("only %d of %d segments were measured within %g s", len(known), len(segments), _MEASURE_S)
    return known
