"""Retry delays: exponential back-off with jitter, as a pure function of the attempt.

Invariant: a delay is never above `max_ms`, jitter included, and never negative. Randomness comes from the caller's
`Random`; nothing here sleeps. Follows Kafka's `ExponentialBackoff` (its later releases cut at the maximum after the
jitter, as here) and Pravega's `Retry.withExpBackoff`.
"""

from __future__ import annotations

from random import Random
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator


class Backoff(BaseModel):
    """A schedule of delays.

    initial_ms: before the second attempt, jitter aside.
    multiplier: each further delay is so many times the one before.
    max_ms: no delay is longer.
    jitter: share by which a delay may be shorter or longer, at random.
    max_attempts: how often to try in all; None for no bound.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    initial_ms: float = Field(gt=0, allow_inf_nan=False)
    multiplier: float = Field(default=2.0, ge=1, allow_inf_nan=False)
    max_ms: float = Field(gt=0, allow_inf_nan=False)
    jitter: float = Field(default=0.2, ge=0, lt=1)
    max_attempts: int | None = Field(default=None, ge=1)

    @model_validator(mode="after")
    def _grows(self) -> Self:
        if self.initial_ms > self.max_ms:
            raise ValueError(f"initial_ms {self.initial_ms:g} is above max_ms {self.max_ms:g}")
        return self

    def delay_ms(self, failures: int, random: Random) -> float:
        """The wait after so many consecutive failures, 1 for the first; none before it."""
        if failures < 1:
            return 0.0
        try:
            delay = self.initial_ms * self.multiplier ** (failures - 1)
        except OverflowError:
            delay = self.max_ms
        delay = min(delay, self.max_ms)
        if self.jitter:
            delay *= random.uniform(1 - self.jitter, 1 + self.jitter)
        return min(delay, self.max_ms)

    def exhausted(self, failures: int) -> bool:
        """Whether so many failures are all that are tried."""
        return self.max_attempts is not None and failures >= self.max_attempts
