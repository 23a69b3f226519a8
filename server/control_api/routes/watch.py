"""Records requests for the control API, only while a client asks for them.

A server that `serve` started keeps no requests. From the first question on it does, in bounded memory, and it ends when
nobody has asked for a while. So a server that nobody looks at does nothing for this.
"""

from __future__ import annotations

import asyncio
from typing import Final

from segstore.server.faults import Faults, Observer

_BYTES: Final = 4 * 1024 * 1024


class Watch:
    """Keeps requests while they are asked for. forget_s: so long after the last question it goes on."""

    def __init__(self, forget_s: float = 15.0) -> None:
        self.forget_s = forget_s
        self._faults: Faults | None = None
        self._own: Observer | None = None
        self._timer: asyncio.TimerHandle | None = None

    def of(self, faults: Faults) -> tuple[Observer, bool]:
        """Who keeps the requests, and whether only while they are asked for."""
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
        """Keeps nothing any more, until it is asked again."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._faults is not None and self._faults.observer is self._own:
            self._faults.observer = None
        self._faults = self._own = None
