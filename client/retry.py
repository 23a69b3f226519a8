"""Exponential back-off with jitter: the delay after N consecutive failures, and whether another attempt is allowed.

Invariant: a delay is never above `max_ms`, jitter included, and never negative. Randomness comes from the caller's
`Random`; nothing here sleeps. Follows Kafka's `ExponentialBackoff` (its later releases cut at the maximum after the
jitter, as here) and Pravega's `Retry.withExpBackoff`.
"""

from __future__ import annotations

import json
from random import Random
from typing import Any, Final, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from segstore.wire.names import MAX_INT32

LONGEST_MS: Final = MAX_INT32
"""The longest time that gRPC takes, in an int."""


class Backoff(BaseModel):
    """A schedule of delays; also from a JSON object with these fields.

    initial_ms: delay before the second attempt, without jitter.
    multiplier: factor between consecutive delays.
    max_ms: upper bound of every delay, at most LONGEST_MS.
    jitter: fraction by which a delay is randomly shortened or lengthened.
    max_attempts: total number of attempts; None for no bound.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    initial_ms: float = Field(gt=0, allow_inf_nan=False)
    multiplier: float = Field(default=2.0, ge=1, allow_inf_nan=False)
    max_ms: float = Field(gt=0, le=LONGEST_MS)
    jitter: float = Field(default=0.2, ge=0, lt=1)
    max_attempts: int | None = Field(default=None, ge=1)

    @model_validator(mode="before")
    @classmethod
    def _read_json(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return json.loads(value)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"this is not JSON: {error}") from None

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if self.initial_ms > self.max_ms:
            raise ValueError(f"initial_ms {self.initial_ms:g} is above max_ms {self.max_ms:g}")
        return self

    def delay_ms(self, failures: int, random: Random) -> float:
        """The delay after this many consecutive failures; 0 before the first."""
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
        """Whether this many failures use up `max_attempts`."""
        return self.max_attempts is not None and failures >= self.max_attempts


POLLS: Final = Backoff(initial_ms=5, multiplier=2, max_ms=500, jitter=0.2)
"""The interval of polling the controller for the end of an operation, such as a scale or a commit."""
