"""A limit shared fairly among the peers of a server: concurrent calls, or bytes held by calls.

A peer may take more while it has less than one `_PART`th of what is free. So a single peer gets a ninth of the limit;
several get less each, and leave room for new peers. Invariants: what is taken exceeds the limit by less than one
request; the waiters of a peer are served in order, and peers in turn. Used in one event loop.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Final

_PART: Final = 8


class Shares:
    """A limit, and what each peer has taken of it."""

    def __init__(self, limit: int) -> None:
        self._free = limit
        self._taken: dict[str, int] = {}
        self._waiting: dict[str, OrderedDict[asyncio.Future[None], None]] = {}

    def try_take(self, peer: str, size: int) -> bool:
        """Take `size` if the peer may take more now, and return whether it may. Then `give_back` must follow."""
        if not self._may_take(peer):
            return False
        self._take(peer, size)
        return True

    async def take(self, peer: str) -> None:
        """Wait until the peer may take more, and take 1; `give_back` must follow, unless this is cancelled."""
        if peer not in self._waiting and self._may_take(peer):
            self._take(peer, 1)
            return
        taken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(peer, OrderedDict())[taken] = None
        try:
            await taken
        except asyncio.CancelledError:
            if not taken.cancelled():
                self.give_back(peer)
            elif taken in (waiting := self._waiting.get(peer, OrderedDict())):
                del waiting[taken]
                if not waiting:
                    del self._waiting[peer]
            raise

    def give_back(self, peer: str, size: int = 1) -> None:
        """Return what was taken, and resume waiters that may take it now."""
        self._take(peer, -size)
        if not self._taken[peer]:
            del self._taken[peer]
        while self._free > 0:
            following = next(filter(self._may_take, self._waiting), None)
            if following is None:
                return
            waiting = self._waiting.pop(following)
            taken, _ = waiting.popitem(last=False)
            if waiting:
                self._waiting[following] = waiting  # after all other peers
            if not taken.cancelled():
                self._take(following, 1)
                taken.set_result(None)

    def _may_take(self, peer: str) -> bool:
        return _PART * self._taken.get(peer, 0) < self._free

    def _take(self, peer: str, size: int) -> None:
        self._free -= size
        self._taken[peer] = self._taken.get(peer, 0) + size
