"""Finds the successors of segments that a reader or writer has reached the end of."""

from __future__ import annotations

import asyncio
from random import Random

from segstore.client.attempts import Attempts
from segstore.client.config import ClientSettings
from segstore.client.controller import Controller, Successor, parts_of
from segstore.client.errors import Retriable


async def successors_of(
    segment: str, controller: Controller, settings: ClientSettings, random: Random
) -> list[Successor]:
    """Returns the successors of a segment that has ended; [] if its stream is sealed.

    While a scale is still in progress the request is retried, with the retry settings of readers and writers. Raises
    RetriesExhausted, ProtocolViolation, and the errors of controller calls.
    """
    scope, stream, segment_id = parts_of(segment)
    what = f"finding successors of {segment}"
    attempts = Attempts(settings, what, segment=segment, stream=f"{scope}/{stream}", random=random)
    while True:
        last: Retriable | None = None
        try:
            async with attempts.one():
                successors = await controller.successors(scope, stream, segment_id)
                if successors or not await controller.current_segments(scope, stream):
                    return successors
        except Retriable as problem:
            last = problem
        await asyncio.sleep(attempts.failed(last))
