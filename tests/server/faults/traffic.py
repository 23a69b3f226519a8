"""Traffic for tests of faults, to a store directly or through a tap, and how to look at its effect."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal

from segstore.server import MockSegmentStore, SegmentStoreServer
from segstore.server.clock import Clock, LoopClock
from segstore.server.faults import Faults, FaultSettings, Observer, WithFaults
from segstore.server.store import Segment
from segstore.server.tap import TapServer, TapSettings
from segstore.wire import DataAppended, KeepAlive
from segstore.wire.endpoint import Endpoint
from tests.server.support import HELLO, SEGMENT, Peer, create, set_up

__all__ = ["APPENDS", "PONG", "Host", "HostName", "acknowledged", "hosted", "stored", "writer_of"]

APPENDS = "type = APPEND_BLOCK_END"
PONG = KeepAlive()
HostName = Literal["store", "tap"]


class Host(WithFaults):
    """What applies fault rules: a store to its own connections, or a tap to those of a store without rules.

    Attributes:
        name: which of the two. store: the store in both cases. host, port: where clients connect.
    """

    def __init__(self, name: HostName, faults: Faults, store: MockSegmentStore, endpoint: Endpoint) -> None:
        super().__init__(faults)
        self.name = name
        self.store = store
        self.host, self.port = endpoint

    @property
    def segments(self) -> dict[str, Segment]:
        """All segments of the store by name."""
        return self.store.segments

    @property
    def server(self) -> SegmentStoreServer:
        """The store's server."""
        return self.store.server


@asynccontextmanager
async def hosted(
    name: HostName, *, clock: Clock | None = None, faults: FaultSettings | None = None, **settings: Any
) -> AsyncIterator[Host]:
    """Starts a host with an observer. settings: of the store."""
    if name == "store":
        async with MockSegmentStore(clock=clock, faults=faults, **settings) as mock:
            yield Host(name, mock.faults, mock, Endpoint(mock.host, mock.port))
        return
    rules = Faults(clock or LoopClock(), faults, observer=Observer())
    async with (
        MockSegmentStore(watched=False, **settings) as mock,
        TapServer(TapSettings(store=Endpoint(mock.host, mock.port)), faults=rules) as tap,
    ):
        assert tap.address is not None
        yield Host(name, rules, mock, tap.address)


async def writer_of(host: Host | MockSegmentStore) -> Peer:
    """A connection with a segment and a writer."""
    peer = await Peer.connect(host)
    assert len(await peer.ask(HELLO, create(), set_up())) == 3
    return peer


def stored(host: Host | MockSegmentStore) -> int:
    """The length of the segment."""
    return host.segments[SEGMENT].length


def acknowledged(replies: list[object]) -> list[int]:
    """The event numbers of the acknowledged appends."""
    return [reply.event_number for reply in replies if isinstance(reply, DataAppended)]
