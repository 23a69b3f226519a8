"""The common base of a stream's readers and writers, and the search for the successors of segments that have ended.

Invariant: a chain of segments that end as soon as they are found, with nothing read from or stored in them, is followed
for at most `recovery_timeout_ms`. `Controller` checks that successors have later epochs.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from random import Random
from typing import Final, NamedTuple

from segstore.client.attempts import Attempts
from segstore.client.config import ClientSettings
from segstore.client.controller import Cluster, Controller, Successor, parts_of
from segstore.client.errors import Retriable, RetriesExhausted

_AT_ONCE_S: Final = 1.0
"""A segment that stays open longer than this counts as progress."""


class StreamClient:
    """A client of one stream.

    Attributes:
        scope, stream: the stream's scope and name.
    """

    scope: Final[str]
    stream: Final[str]

    def __init__(self, cluster: Cluster, scope: str, stream: str) -> None:
        self.scope = scope
        self.stream = stream
        self._name: Final = f"{scope}/{stream}"
        self._cluster: Final = cluster
        self._pool, self._controller, self._locations, _ = cluster
        self._settings: Final = cluster.pool.settings
        self._closed = False


class _Chain(NamedTuple):
    """A chain of segments that ended as soon as they were found. found_s: when the last segment was found."""

    began_s: float
    length: int
    found_s: float


@dataclass(eq=False, repr=False)
class Successors:
    """Finds successors for one reader or writer."""

    controller: Controller
    settings: ClientSettings
    random: Random
    _: KW_ONLY
    now_s: Callable[[], float] = time.monotonic
    _chains: dict[str, _Chain] = field(default_factory=dict, init=False)
    """The chain that led to each segment that has not ended."""

    async def of(self, segment: str, *, in_vain: bool) -> list[Successor]:
        """Returns the successors of a segment that has ended; [] if its stream is sealed.

        in_vain: nothing was read from or stored in the segment. While a scale is still in progress the request is
        retried, with the retry settings of readers and writers. Raises RetriesExhausted, ProtocolViolation, and the
        errors of controller calls.
        """
        chain = self._chain(segment, in_vain=in_vain)
        scope, stream, segment_id = parts_of(segment)
        what = f"finding successors of {segment}"
        attempts = Attempts(self.settings, what, segment=segment, stream=f"{scope}/{stream}", random=self.random)
        while True:
            last: Retriable | None = None
            try:
                async with attempts.one():
                    successors = await self.controller.successors(scope, stream, segment_id)
                    if successors or not await self.controller.current_segments(scope, stream):
                        break
            except Retriable as problem:
                last = problem
            await asyncio.sleep(attempts.failed(last))
        if chain is not None:
            chain = chain._replace(found_s=self.now_s())
            self._chains.update((successor.segment.name, chain) for successor in successors)
        return successors

    def _chain(self, segment: str, *, in_vain: bool) -> _Chain | None:
        """Returns the chain that ends with this segment; None unless `in_vain`. Raises RetriesExhausted on timeout."""
        chain, now_s = self._chains.pop(segment, None), self.now_s()
        if not in_vain:
            return None
        if chain is None or now_s - chain.found_s > _AT_ONCE_S:
            return _Chain(now_s, 1, now_s)
        elapsed_s, length = now_s - chain.began_s, chain.length + 1
        if elapsed_s * 1000 >= self.settings.recovery_timeout_ms:
            raise RetriesExhausted(
                f"{length} segments, the last of them {segment}, ended one after another in {elapsed_s:.1f} s; "
                "nothing was read from or stored in any of them",
                segment=segment,
                actual=length,
                elapsed_ms=round(elapsed_s * 1000),
                bounded_by="recovery_timeout_ms",
            )
        return chain._replace(length=length)
