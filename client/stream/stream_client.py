"""The common base of a stream's readers and writers, and the search for the successors of segments that have ended.

Invariant: the search always goes on to later epochs, which `Controller` checks, and ends with an error once segment
after segment has ended, with nothing read from or stored in it, for `recovery_timeout_ms`.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

from segstore.client.attempts import Attempts
from segstore.client.config import ClientSettings
from segstore.client.controller import Cluster, Successor, parts_of
from segstore.client.errors import Retriable, RetriesExhausted


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


def check_progress(settings: ClientSettings, segment: str, idle_since_s: float) -> None:
    """Raises RetriesExhausted if nothing was read or stored for `recovery_timeout_ms` on the way to a segment.

    idle_since_s: since when, by `time.monotonic`.
    """
    idle_s = time.monotonic() - idle_since_s
    if idle_s * 1000 >= settings.recovery_timeout_ms:
        raise RetriesExhausted(
            f"the segments that lead to {segment} ended one after another for {idle_s:.1f} s; "
            "nothing was read from or stored in any of them",
            segment=segment,
            stream=segment.rpartition("/")[0],
            elapsed_ms=round(idle_s * 1000),
            bounded_by="recovery_timeout_ms",
        )


async def successors_of(cluster: Cluster, segment: str, idle_since_s: float) -> list[Successor]:
    """Returns the successors of a segment that has ended; [] if its stream is sealed.

    idle_since_s: since when the caller has read or stored nothing, in this segment and in the segments that led to it,
    by `time.monotonic`. While a scale is still in progress the request is retried, with the retry settings of readers
    and writers. Raises RetriesExhausted, ProtocolViolation, and the errors of controller calls.
    """
    scope, stream, segment_id = parts_of(segment)
    pool, what = cluster.pool, f"finding successors of {segment}"
    check_progress(pool.settings, segment, idle_since_s)
    attempts = Attempts(pool.settings, what, segment=segment, stream=f"{scope}/{stream}", random=pool.random)
    while True:
        last: Retriable | None = None
        try:
            async with attempts.one():
                successors = await cluster.controller.successors(scope, stream, segment_id)
                if successors or not await cluster.controller.current_segments(scope, stream):
                    return successors
        except Retriable as problem:
            last = problem
        await asyncio.sleep(attempts.failed(last))
