"""Keeps the event loop awake for an acknowledgement that is due at once.

A loop that has nothing to do sleeps until a socket is readable, and waking up can take longer than a store nearby takes
to answer. So while the only append of a connection is in flight, the loop is polled instead: it runs some more
iterations, each of which serves all other callbacks and sockets too. An acknowledgement that comes meanwhile costs no
wake-up, which takes about as much CPU as the polling.

Where acknowledgements take longer, polling is wasted, and soon no longer done: after each failure in a row, twice as
many appends are sent before one is polled for again.

Invariants: at most one callback is scheduled; polling ends with the acknowledgement, after `most` iterations, or when
the connection is closed, which leaves nothing in flight. No I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

_MOST_FAILURES: Final = 10


class InFlightBytes(Protocol):
    """An outbox, as its polling sees it."""

    bytes_in_flight: int


class AckPolling:
    """The polling of one connection.

    Attributes:
        active: whether the loop is kept awake now.
        skip: number of appends not to poll for.
    """

    __slots__ = ("_failures", "_left", "_most", "_outbox", "_soon", "active", "skip")

    def __init__(self, outbox: InFlightBytes, most: int, soon: Callable[[Callable[[], None]], object]) -> None:
        """most: maximum number of loop iterations for an append, 0 for none. soon: schedules a callback for the next
        iteration.
        """
        self._outbox = outbox
        self._most = most
        self._soon = soon
        self._left = 0
        self._failures = 0
        self.active = False
        self.skip = 0

    def start(self) -> None:
        """Polls for the acknowledgement of an append that was sent while nothing else was in flight."""
        if not self._outbox.bytes_in_flight:
            return  # it could not be sent
        if self.skip:
            self.skip -= 1
        elif self._most:
            self._left = self._most
            if not self.active:
                self.active = True
                self._soon(self._poll)

    def _poll(self) -> None:
        if not self._outbox.bytes_in_flight:
            self.active = False
            self._failures = 0
        elif self._left:
            self._left -= 1
            self._soon(self._poll)
        else:
            self.active = False
            self._failures = min(self._failures + 1, _MOST_FAILURES)
            self.skip = 1 << self._failures
