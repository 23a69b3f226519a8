"""Retry budgets: bounds on the number and the total time of consecutive failures of one operation.

    attempts = Attempts(settings, "a request about a/b/0", call=True)
    while True:
        try:
            async with attempts.one():
                return await ask()
        except Retriable as error:
            pause_s = attempts.failed(error)
        await asyncio.sleep(pause_s)

There are three bounds: the number of attempts that `retry` allows; a total time for all attempts; and, for calls only,
a shorter total time if connections are refused, because no peer is listening. Writers and readers ignore the third: a
restarting cluster refuses connections, and their unsent data is worth the wait.

Invariant: attempts end with RetriesExhausted, which carries the endpoint, the number of attempts, the elapsed time and
the setting that bounded them; its cause is the last failure. Follows Kafka's clients, which bound the total time of a
call and of a delivery; Pravega's clients bound the number of attempts (Java) or nothing (Rust).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import KW_ONLY, dataclass, field
from random import Random
from typing import Final

from segstore.client.config import ClientSettings
from segstore.client.errors import (
    ClientError,
    ConnectFailed,
    ConnectTimedOut,
    NoNodeAvailable,
    RequestTimedOut,
    RetriesExhausted,
)

HELD_S: Final = 1.0
"""What lasts at least this long counts as progress: the set-up of an idle writer, a segment that stays open."""


@dataclass(slots=True, eq=False, repr=False)
class Attempts:
    """The attempts at one operation, and the budget that bounds them.

    Attributes:
        what: names the operation in errors. segment, stream: its subject.
        call: if true, `call_timeout_ms` and `refused_timeout_ms` apply, else `recovery_timeout_ms`.
        may_move: whether a later attempt may go to another store, so that one store's refusal is not final.
        timeout_ms: limit for one attempt; the limit for all attempts is at least this.
        failures: number of consecutive failures.
    """

    settings: ClientSettings
    what: str
    _: KW_ONLY
    segment: str | None = None
    stream: str | None = None
    call: bool = False
    may_move: bool = True
    timeout_ms: float = 0
    random: Random | None = None
    now_s: Callable[[], float] = time.monotonic
    failures: int = field(default=0, init=False)
    _since_s: float | None = field(default=None, init=False)
    _began_s: float | None = field(default=None, init=False)
    _refused_s: float | None = field(default=None, init=False)
    _last: ClientError | None = field(default=None, init=False)

    def progress(self) -> None:
        """Records progress: resets the failure count and the timer."""
        self.failures = 0
        self._since_s = self._began_s = self._refused_s = self._last = None

    @asynccontextmanager
    async def one(self) -> AsyncIterator[None]:
        """Runs one attempt; raises RetriesExhausted when the total time is used up, at the latest."""
        self._began_s = now_s = self.now_s()
        if self._since_s is None:
            self._since_s = now_s
        scope = asyncio.timeout(max(self._since_s + self._limit_ms / 1000 - now_s, 0))
        try:
            async with scope:
                yield
        except TimeoutError as cause:
            if not scope.expired():
                raise
            self.failures += 1
            none = RequestTimedOut(f"there was no answer within {self._limit_ms:.0f} ms", limit=self._limit_ms)
            last = self._last or none.caused_by(cause)
            raise self._exhausted(self._time_setting, last) from last

    def failed(self, error: ClientError | None) -> float:
        """Records a failed attempt; returns the delay before the next in seconds, or raises RetriesExhausted.

        error: the failure; None if the attempt ended without a result and without an error.
        """
        retry, now_s = self.settings.retry, self.now_s()
        began_s = now_s if self._began_s is None else self._began_s
        self.failures += 1
        self._last = error
        self._since_s = began_s if self._since_s is None else self._since_s
        if not self._is_refusal(error):
            self._refused_s = None
        elif self._refused_s is None:
            self._refused_s = began_s
        bound = self._bound(error, now_s)
        if bound is not None:
            raise self._exhausted(bound, error) from error
        pause_s = retry.delay_ms(self.failures, self.random or Random()) / 1000
        left_s = self._ends_s() - now_s
        # Sleeping must not use up the budget: half of what remains is left for attempts.
        return pause_s if pause_s < left_s else left_s / 2

    def _is_refusal(self, error: ClientError | None) -> bool:
        """Whether the connection was refused and no other store can take over."""
        return not self.may_move and isinstance(error, ConnectFailed) and not isinstance(error, ConnectTimedOut)

    def _ends_s(self) -> float:
        assert self._since_s is not None
        ends_s = self._since_s + self._limit_ms / 1000
        if self.call and self._refused_s is not None:
            ends_s = min(ends_s, self._refused_s + self.settings.refused_timeout_ms / 1000)
        return ends_s

    def _bound(self, error: ClientError | None, now_s: float) -> str | None:
        """The setting that rules out another attempt, or None."""
        if self.call and isinstance(error, NoNodeAvailable) and error.details.get("refused"):
            return "refused_timeout_ms"  # the channels have already waited this long, as the error states
        if self.settings.retry.exhausted(self.failures):
            return "retry"
        if now_s < self._ends_s():
            return None
        assert self._since_s is not None
        in_time = now_s < self._since_s + self._limit_ms / 1000
        return "refused_timeout_ms" if in_time else self._time_setting

    @property
    def _limit_ms(self) -> float:
        limit_ms: float = getattr(self.settings, self._time_setting)
        return max(limit_ms, self.timeout_ms)

    @property
    def _time_setting(self) -> str:
        return "call_timeout_ms" if self.call else "recovery_timeout_ms"

    def _exhausted(self, bound: str, last: ClientError | None) -> RetriesExhausted:
        assert self._since_s is not None
        elapsed_s = self.now_s() - self._since_s
        times = "once" if self.failures == 1 else f"{self.failures} times"
        return RetriesExhausted(
            f"{self.what} failed {times} in {elapsed_s:.1f} s" + (f": {last}" if last else ""),
            endpoint=last.endpoint if last else None,
            segment=self.segment,
            stream=self.stream,
            request_id=last.request_id if last else None,
            actual=self.failures,
            elapsed_ms=round(elapsed_s * 1000),
            bounded_by=bound,
        )
