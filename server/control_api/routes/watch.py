"""Records requests for the control API, only while a client asks for them.

A server started by `serve` records no requests at first. The first query starts recording, in bounded memory; it stops
when there was no query for a while. A server that is not inspected has no cost.
"""

from __future__ import annotations

import asyncio
from typing import Final

from segstore.server.faults import Faults, Observer

_BYTES: Final = 4 * 1024 * 1024


class Watch:
    """Records requests while clients ask for them. forget_s: seconds without a query after which recording stops."""

    def __init__(self, forget_s: float = 15.0) -> None:
        self.forget_s = forget_s
        self._faults: Faults | None = None
        self._own: Observer | None = None
        self._timer: asyncio.TimerHandle | None = None

    def of(self, faults: Faults) -> tuple[Observer, bool]:
        """Returns the observer that records requests, and whether it records only on demand."""
        if faults.observer is None:
            self._faults, self._own = faults, Observer(_BYTES)
            faults.observer = self._own
        if faults.observer is not self._own:
            return faults.observer, False
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(self.forget_s, self.close)
        return faults.observer, True

    def close(self) -> None:
        """Stops recording until the next query."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._faults is not None and self._faults.observer is self._own:
            self._faults.observer = None
        self._faults = self._own = None
