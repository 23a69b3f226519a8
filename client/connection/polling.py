"""Keeps the event loop awake for an acknowledgement that is due at once.

A loop that has nothing to do sleeps until a socket is readable, and waking up can take longer than a store nearby takes
to answer. So while the only append of a connection is in flight, the loop is polled instead: it runs some more
iterations, which serve all other callbacks and sockets, too. An acknowledgement that comes meanwhile costs no wake-up,
which takes about as much CPU as the polling.

Where acknowledgements take longer, polling is wasted, so it is soon done less and less: after each failure in a row,
twice as many appends are sent before the next poll.

Invariants: at most one callback is scheduled; polling ends with the acknowledgement, after `most` iterations, or when
the connection is closed, which leaves nothing in flight. No I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from segstore.client.connection.outbox import Outbox

_MOST_FAILURES: Final = 10


class AckPolling:
    """The polling of one connection.

    Attributes:
        skip: number of appends not to poll for.
    """

    __slots__ = ("_awaited", "_failures", "_left", "_most", "_soon", "skip")

    def __init__(self, most: int, soon: Callable[[Callable[[], None]], object]) -> None:
        """most: maximum number of loop iterations for an append, 0 for no polling. soon: schedules a callback for the
        next iteration.
        """
        self._awaited: Outbox | None = None
        self._most = most
        self._soon = soon
        self._left = 0
        self._failures = 0
        self.skip = 0

    @property
    def active(self) -> bool:
        """Whether the loop is kept awake now."""
        return self._awaited is not None

    def start(self, outbox: Outbox) -> None:
        """Polls for the acknowledgement of an append that was sent while nothing else was in flight."""
        if not outbox.bytes_in_flight:
            return  # it could not be sent
        if self.skip:
            self.skip -= 1
        elif self._most:
            self._left = self._most
            if self._awaited is None:
                self._soon(self._poll)
            self._awaited = outbox

    def _poll(self) -> None:
        self._left -= 1
        if self._awaited is None or not self._awaited.bytes_in_flight:
            self._awaited = None
            self._failures = 0
        elif self._left:
            self._soon(self._poll)
        else:
            self._awaited = None
            self._failures = min(self._failures + 1, _MOST_FAILURES)
            self.skip = 1 << self._failures
