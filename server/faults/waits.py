"""Pending delays, holds and functions of fault rules on a connection of a store or a tap.

Invariant: a wait calls back once when it ends, unless `clear` was called before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from segstore.server.faults.decisions import Wait
from segstore.server.faults.faults import Faults, Waiting


class FaultWaits:
    """The pending waits of one connection. Its owner calls `clear` when the connection is closed.

    Attributes:
        is_cleared: whether the connection is closed.
    """

    def __init__(self, faults: Faults) -> None:
        self._faults = faults
        self._pending: set[Waiting] = set()
        self.is_cleared = False

    def add(self, wait: Wait, resume: Callable[[], object], task: asyncio.Task[None] | None = None) -> Waiting | None:
        """Calls `resume` when the wait ends, possibly at once. After `clear`, returns None and never calls it.

        task: the function that a hold waits for; it is cancelled with the wait.
        """
        return None if self.is_cleared else Waiting(self._faults, wait, resume, self._pending, task)

    def clear(self) -> None:
        """Cancels all waits; nothing is called back afterwards."""
        self.is_cleared = True
        for waiting in tuple(self._pending):
            waiting.cancel()
