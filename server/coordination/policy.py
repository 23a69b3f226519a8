"""What a store does when its coordination session expires (seeds 57.1, 57.2).

`Shutdown` ends the store, so that others take its containers at once. `Reconnect` opens a new session, with a limited
number of retries, and acquires containers again; if it gets no session, it ends the store. Zero retries means
`Shutdown`.

Follows `ZookeeperSessionExpiredHandler` and its two implementations (Pulsar, change 6347).
"""

from __future__ import annotations

import asyncio
import logging
from random import Random
from typing import Literal, Protocol

from pydantic import BaseModel, Field

from segstore.server.config import SETTINGS
from segstore.server.coordination.types import CoordinationSession, Coordinator, Unreachable

log = logging.getLogger(__name__)

PolicyName = Literal["shutdown", "reconnect"]

_FIRST_BACKOFF_MS = 100
_MAX_BACKOFF_MS = 60_000
_JITTER = 0.2


class OwnershipSettings(BaseModel):
    """How a store owns containers."""

    model_config = SETTINGS

    session_timeout_ms: float = Field(default=10_000.0, gt=0)
    """The coordination service expires a session that it has not heard from for this long."""
    session_expired_policy: PolicyName = "shutdown"
    """What a store does when its session has expired: shut down, or open a new session."""
    session_reconnect_retries: int = Field(default=10, ge=0)
    """Maximum number of attempts to open a new session; 0 shuts down."""
    takeover_delay_ms: float = Field(default=500.0, ge=0)
    """Delay before a store takes a container that last belonged to another store."""
    preload: bool = False
    """Open containers that come back from another owner at once, not on first use."""
    stale_node: Literal["wait", "replace"] = "wait"
    """What to do with a node left by an older session of this store: wait until it is gone, or replace it."""
    load_report_interval_ms: float = Field(default=5_000.0, gt=0)
    """Interval between the load reports of a store."""
    rebalance: bool = True
    """Move containers to stores that own fewer."""


def backoff_s(attempt: int, random: Random) -> float:
    """Returns the wait after failed attempt 0, 1, …: 100 ms to 60 s, doubled each time, 20 % jitter (seed 57.9)."""
    wait_ms = min(_MAX_BACKOFF_MS, float(_FIRST_BACKOFF_MS << min(attempt, 16)))
    return min(_MAX_BACKOFF_MS, wait_ms * random.uniform(1 - _JITTER, 1 + _JITTER)) / 1000


class SessionExpiredPolicy(Protocol):
    """Decides what happens after a session has expired."""

    async def on_expired(self, coordinator: Coordinator) -> CoordinationSession | None:
        """Returns a new session, or None if the store should shut down. Raises Unreachable if it gets no session."""


class Shutdown:
    """Shuts the store down, so that others take its containers."""

    async def on_expired(self, coordinator: Coordinator) -> CoordinationSession | None:
        return None


class Reconnect:
    """Opens a new session, with at most `retries` attempts."""

    def __init__(self, retries: int, random: Random) -> None:
        self._retries = retries
        self._random = random

    async def on_expired(self, coordinator: Coordinator) -> CoordinationSession | None:
        for attempt in range(1, self._retries + 1):
            try:
                return await coordinator.connect()
            except Unreachable as error:
                log.warning("no new coordination session, attempt %d of %d: %s", attempt, self._retries, error)
                if attempt == self._retries:
                    raise
            await asyncio.sleep(backoff_s(attempt - 1, self._random))
        return None


def policy_of(settings: OwnershipSettings, random: Random) -> SessionExpiredPolicy:
    """Returns the policy that the settings name."""
    if settings.session_expired_policy == "shutdown" or settings.session_reconnect_retries == 0:
        return Shutdown()
    return Reconnect(settings.session_reconnect_retries, random)
