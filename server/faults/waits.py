"""Pending delays of fault rules on a connection of a store or a tap.

Invariant: a wait calls back once when it ends, unless `clear` was called before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from segstore.server.faults.decisions import Wait
    from segstore.server.faults.faults import Faults, Waiting


class FaultWaits:
    """The pending waits of one connection. Its owner calls `clear` when the connection is closed."""

    __slots__ = ("_cleared", "_faults", "_waiting")

    def __init__(self, faults: Faults) -> None:
        self._faults = faults
        self._waiting: set[Waiting] = set()
        self._cleared = False

    def add(self, wait: Wait, go_on: Callable[[], object]) -> None:
        """Calls `go_on` when the wait ends, possibly at once."""
        waiting: Waiting | None = None
        over = False

        def finish() -> None:
            nonlocal over
            over = True
            if waiting is not None:
                self._waiting.discard(waiting)
            if not self._cleared:
                go_on()

        waiting = self._faults.wait(wait, finish)
        if not over:
            self._waiting.add(waiting)

    def clear(self) -> None:
        """Cancels all waits; nothing is called back afterwards."""
        self._cleared = True
        for waiting in tuple(self._waiting):
            waiting.cancel()
        self._waiting.clear()
