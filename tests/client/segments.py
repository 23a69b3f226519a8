"""What tests of segment writers and readers share: a segment, how it is made, what it holds."""

from segstore.client.retry import Backoff
from segstore.server import MockSegmentStore
from segstore.wire import AppendBlockEnd, AppendSetup, Command, DataAppended, SegmentCreated, SetupAppend
from tests.client.support import ScriptedPeer, create
from tests.server.support import Peer

__all__ = ["FAST_RETRY", "SEGMENT", "content", "make", "setup_reply", "stores_all"]

SEGMENT = "scope/stream/0.#epoch.0"
FAST_RETRY = Backoff(initial_ms=1, max_ms=2, jitter=0, max_attempts=4)


async def make(store: MockSegmentStore, *segments: str) -> None:
    async with await Peer.connect(store) as peer:
        for segment in segments or (SEGMENT,):
            (reply,) = await peer.ask(create(segment))
            assert isinstance(reply, SegmentCreated)


def content(store: MockSegmentStore, segment: str = SEGMENT) -> bytes:
    result = store.store.read(segment, 0, 1 << 21)
    return b"" if result is None else b"".join(result.data)


def setup_reply(command: Command, last: int = -(2**63)) -> AppendSetup:
    assert isinstance(command, SetupAppend)
    return AppendSetup(command.request_id, command.segment, command.writer_id, last)


def stores_all(peer: ScriptedPeer, command: Command) -> None:
    """A store that acknowledges whatever comes."""
    if isinstance(command, SetupAppend):
        peer.send(setup_reply(command))
    elif isinstance(command, AppendBlockEnd):
        last = command.last_event_number
        peer.send(DataAppended(command.request_id, command.writer_id, last, last - command.num_events, 10 * last))
