"""Outgoing replies of a connection: they leave in order, after their delays and holds.

Invariants: a waiting reply blocks the replies behind it, unless they may overtake it; after `clear` nothing leaves.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Final

from segstore.server.faults.decisions import Wait

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from segstore.server.faults.faults import Faults, FaultWaits
    from segstore.server.faults.observe import Seen

WAITING_BYTES: Final = 1024
"""Approximate overhead of a waiting request or reply: its timer and callback."""
_QUEUED_BYTES: Final = 256
"""Overhead of a ready reply behind a waiting reply."""


class _Outgoing:
    """A frame, or its unsent rest."""

    def __init__(self, data: bytes, seen: Sequence[Seen], *, ready: bool) -> None:
        self.data = data
        self.cost = len(data) + (_QUEUED_BYTES if ready else WAITING_BYTES)
        self.seen = seen
        self.ready = ready


class OutgoingReplies:
    """The queue of one connection's replies.

    store: number of the store, which has a round-trip time of its own. on_ready: called when a wait ends, so that
    `take` has replies to return.

    Attributes:
        held_bytes: size of the queued replies, with overhead.
    """

    def __init__(self, faults: Faults, store: int, waits: FaultWaits, on_ready: Callable[[], object]) -> None:
        self.held_bytes = 0
        self._faults = faults
        self._store = store
        self._waits = waits
        self._on_ready = on_ready
        self._queue: deque[_Outgoing] = deque()
        self._overtakable = 0

    @property
    def is_empty(self) -> bool:
        """Whether nothing is queued and nothing waits to be queued."""
        return not self._queue and not self._overtakable

    @property
    def is_open(self) -> bool:
        """Whether a reply without a planned wait leaves at once."""
        return not self._queue and not self._faults.round_trip_s(self._store)

    def add(self, frames: Sequence[bytes], seen: Sequence[Seen], wait: Wait) -> None:
        """Queues frames that may leave when a wait has ended; the round-trip time is part of it."""
        if self._waits.is_cleared:
            return
        wait = Wait(wait.seconds + self._faults.round_trip_s(self._store), wait.holds, wait.overtake)
        for frame in frames:
            reply = _Outgoing(frame, seen, ready=not wait)
            if wait.overtake:
                self._overtakable += 1
            else:
                self._queue.append(reply)
            self.held_bytes += reply.cost
            if wait:
                self._waits.add(wait, partial(self._is_ready, reply, overtakable=wait.overtake))

    def _is_ready(self, reply: _Outgoing, *, overtakable: bool) -> None:
        """overtakable: others could overtake it, so it leaves behind all that are queued."""
        reply.ready = True
        if overtakable:
            self._overtakable -= 1
            self._queue.append(reply)
        self._on_ready()

    def take(self) -> tuple[bytes, Sequence[Seen]]:
        """Removes and returns the frames that may leave now, joined, and the requests that they answer."""
        queue, leaving = self._queue, []
        seen: list[Seen] = []
        while queue and queue[0].ready:
            reply = queue.popleft()
            self.held_bytes -= reply.cost
            leaving.append(reply.data)
            seen += reply.seen
        return b"".join(leaving), seen

    def clear(self) -> None:
        """Drops all replies, also replies queued later; the owner of the waits has cleared them."""
        self._on_ready = lambda: None  # without a cycle, this and its owner are freed at once
        self._queue.clear()
        self._overtakable = self.held_bytes = 0
