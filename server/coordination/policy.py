"""A store's reaction to the expiry of its coordination session (seeds 57.1, 57.2), and its retries.

The policy "shutdown" ends the store, so that other stores take its containers at once. "reconnect" opens a new session,
with a limited number of retries, and acquires containers again; if it gets no session, it ends the store. Zero retries
means "shutdown".

Follows `ZookeeperSessionExpiredHandler` and its two implementations (Pulsar, change 6347).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from random import Random
from typing import Literal

from pydantic import BaseModel, Field

from segstore.server.config import SETTINGS
from segstore.server.coordination import errors
from segstore.server.coordination.types import CoordinationSession, Coordinator

log = logging.getLogger(__name__)

_FIRST_BACKOFF_MS = 100
_MAX_BACKOFF_MS = 60_000
_JITTER = 0.2
_RANDOM = Random()


class OwnershipSettings(BaseModel):
    """How a store owns containers."""

    model_config = SETTINGS

    session_timeout_ms: float = Field(default=10_000.0, gt=0)
    """The coordination service expires a session that it has not heard from for this long."""
    session_expired_policy: Literal["shutdown", "reconnect"] = "shutdown"
    """Reaction of a store to an expired session: shut down, or open a new session."""
    session_reconnect_retries: int = Field(default=10, ge=0)
    """Maximum number of attempts to open a new session; with 0 the store shuts down at once."""
    takeover_delay_ms: float = Field(default=500.0, ge=0)
    """Delay before a store takes a container that last belonged to another store."""
    preload: bool = False
    """Open regained containers immediately instead of on first use."""
    stale_node: Literal["wait", "replace"] = "wait"
    """Handling of a node left by an older session of this store: wait until it is gone, or replace it."""
    load_report_interval_ms: float = Field(default=5_000.0, gt=0)
    """Interval between the load reports of a store."""
    rebalance: bool = True
    """Move containers to stores that own fewer."""


def backoff_s(attempt: int, random: Random = _RANDOM) -> float:
    """Returns the wait after failed attempt 0, 1, …: 100 ms to 60 s, doubled each time, 20 % jitter (seed 57.9)."""
    wait_ms = min(_MAX_BACKOFF_MS, float(_FIRST_BACKOFF_MS << min(attempt, 16)))
    return min(_MAX_BACKOFF_MS, wait_ms * random.uniform(1 - _JITTER, 1 + _JITTER)) / 1000


async def new_session(
    coordinator: Coordinator, settings: OwnershipSettings, random: Random
) -> CoordinationSession | None:
    """Returns a new session after an expiry; None if the store should shut down.

    Raises Unreachable if the last attempt failed.
    """
    retries = settings.session_reconnect_retries if settings.session_expired_policy == "reconnect" else 0
    for attempt in range(1, retries + 1):
        try:
            return await coordinator.connect()
        except errors.Unreachable as error:
            log.warning("no new coordination session, attempt %d of %d: %s", attempt, retries, error)
            if attempt == retries:
                raise
        await asyncio.sleep(backoff_s(attempt - 1, random))
    return None


async def cancel_and_wait(task: asyncio.Task[None] | None) -> None:
    """Cancels a task, if any, and waits for its end. Raises the error of a failed task."""
    if task is not None:
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error


async def follow(look: Callable[[asyncio.Event], Awaitable[bool]], unknown: str, random: Random = _RANDOM) -> None:
    """Reads nodes until their session ends.

    look: reads the nodes with the given event as their watch; if it returns True, the next call waits for the event.
    After Disconnected, the next call follows a backoff, which the event cuts short. unknown: the information missing
    meanwhile, for the log.
    """
    failed = 0
    while True:
        changed = asyncio.Event()
        try:
            waits = await look(changed)
            failed = 0
            if waits:
                await changed.wait()
        except errors.SessionExpired:
            return
        except errors.Disconnected as error:
            log.info("%s: %s; asking again", unknown, error)
            changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(backoff_s(failed, random)):
                    await changed.wait()
            failed += 1
