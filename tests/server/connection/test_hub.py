"""The account of what peers hold, and deadlines: their work for one event does not grow with the connections."""

import asyncio
from typing import Any

from segstore.server import LimitSettings, MockSegmentStore
from segstore.server.connection import ConnectionHub, SessionEnding
from segstore.server.connection.deadlines import Waits

MANY = 2_000


class Holder:
    """A connection as the hub sees it. reads: how much its peer reads before the hub looks."""

    def __init__(self, shared: ConnectionHub, held: int, reads: int = 0) -> None:
        self.held_bytes = 0
        self.looked_at = 0
        self.is_cut = False
        self.waits = Waits(asyncio.get_running_loop().time())
        self._hub: Any = shared
        self._reads = reads
        shared.connections.add(self)  # type: ignore[arg-type]
        self.hold(held)

    def hold(self, held: int) -> None:
        difference, self.held_bytes = held - self.held_bytes, held
        self._hub.account(difference)

    def look_up(self) -> None:
        self.looked_at += 1
        self.hold(max(0, self.held_bytes - self._reads))

    def cut(self, why: str) -> None:
        self.is_cut = True
        self.hold(0)
        asyncio.get_running_loop().call_soon(self._hub.closed, self)

    def end(self, why: str, ending: SessionEnding) -> None:
        self.cut(why)


async def test_the_largest_are_closed() -> None:
    limits = LimitSettings(total_outstanding_bytes=MANY * 1000)
    async with MockSegmentStore(limits=limits) as store:
        shared = store.server.hub
        small = [Holder(shared, 900) for _ in range(MANY)]
        large = [Holder(shared, 150_000) for _ in range(10)]
        assert sum(each.is_cut for each in large) == store.server.service.counters.evictions == 9
        assert not any(each.is_cut for each in small)
        assert shared.outstanding_bytes == sum(each.held_bytes for each in (*small, *large))


async def test_a_peer_that_has_read_its_replies_since_is_not_closed_for_them() -> None:
    limits = LimitSettings(total_outstanding_bytes=100_000)
    async with MockSegmentStore(limits=limits) as store:
        reader = Holder(store.server.hub, 60_000, reads=59_000)
        stalled = Holder(store.server.hub, 30_000)
        growing = Holder(store.server.hub, 20_000)
        assert [each.is_cut for each in (reader, stalled, growing)] == [False, False, False]
        growing.hold(80_000)
        assert [each.is_cut for each in (reader, stalled, growing)] == [False, False, True]
        assert store.server.hub.outstanding_bytes == 31_000
