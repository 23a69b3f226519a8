"""What a store does when its coordination session expires (seeds 57.1, 57.2).

`Shutdown` ends the store, so that others take its containers at once. `Reconnect` starts a new session, trying so and
so often, and owns again what it can; when it gets none, it ends the store too. Nought retries is `Shutdown`.

Follows `ZookeeperSessionExpiredHandler` and its two implementations (Pulsar, change 6347).
"""

from __future__ import annotations

import asyncio
import logging
from random import Random
from typing import Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field

from segstore.server.coordination.types import CoordinationSession, Coordinator, Unreachable

log = logging.getLogger(__name__)

PolicyName = Literal["shutdown", "reconnect"]

_FIRST_BACKOFF_MS = 100
_MAX_BACKOFF_MS = 60_000
_JITTER = 0.2


class OwnershipSettings(BaseModel):
    """How a store owns containers.

    session_timeout_ms: after so long without a word from the store, the service may end its session.
    session_expired_policy: what it does when its session has expired.
    session_reconnect_retries: how often `reconnect` tries for a new session; 0 is `shutdown`.
    takeover_delay_ms: how long a container is left to its last owner before another takes it.
    preload: open a container that another has had in between at once, not on its first use.
    stale_node: what is done with a node of an older session of ours: wait until it is gone, or replace it by version.
    load_report_interval_ms: how often the store says how much it has to do.
    rebalance: give containers up while other stores have fewer.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    session_timeout_ms: float = Field(default=10_000.0, gt=0)
    session_expired_policy: PolicyName = "shutdown"
    session_reconnect_retries: int = Field(default=10, ge=0)
    takeover_delay_ms: float = Field(default=500.0, ge=0)
    preload: bool = False
    stale_node: Literal["wait", "replace"] = "wait"
    load_report_interval_ms: float = Field(default=5_000.0, gt=0)
    rebalance: bool = True


def backoff_s(attempt: int, random: Random) -> float:
    """Seconds to wait after failed attempt 0, 1, …: 100 ms to 60 s, doubled each time, 20 % of chance (seed 57.9)."""
    wait_ms = min(_MAX_BACKOFF_MS, float(_FIRST_BACKOFF_MS << min(attempt, 16)))
    return min(_MAX_BACKOFF_MS, wait_ms * random.uniform(1 - _JITTER, 1 + _JITTER)) / 1000


class SessionExpiredPolicy(Protocol):
    """Decides what follows an expired session."""

    async def on_expired(self, coordinator: Coordinator) -> CoordinationSession | None:
        """A new session to go on with; None: the store is to shut down. Unreachable: it is, for there is none."""


class Shutdown:
    """The store ends: its containers are for the others."""

    async def on_expired(self, coordinator: Coordinator) -> CoordinationSession | None:
        return None


class Reconnect:
    """A new session, if one is to be had in `retries` attempts."""

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
    """The policy that settings name."""
    if settings.session_expired_policy == "shutdown" or settings.session_reconnect_retries == 0:
        return Shutdown()
    return Reconnect(settings.session_reconnect_retries, random)
