"""What tests of segment writers and readers share: a segment, how it is made, what it holds."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from segstore.client.connection import ConnectionPool, FixedStore
from segstore.client.errors import SegmentOver
from segstore.client.retry import Backoff
from segstore.client.segment import SegmentWriter
from segstore.server import MockSegmentStore
from segstore.wire import AppendBlockEnd, AppendSetup, Command, DataAppended, SegmentCreated, SetupAppend
from tests.client.support import Script, ScriptedPeer, ScriptedStore, create, settings
from tests.server.support import Peer

__all__ = ["FAST_RETRY", "SEGMENT", "content", "make", "sets_up", "setup_reply", "stores_all", "writing"]

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


def sets_up(peer: ScriptedPeer, command: Command) -> None:
    """A store that acknowledges nothing."""
    if isinstance(command, SetupAppend):
        peer.send(setup_reply(command))


def stores_all(peer: ScriptedPeer, command: Command) -> None:
    """A store that acknowledges whatever comes."""
    sets_up(peer, command)
    if isinstance(command, AppendBlockEnd):
        last = command.last_event_number
        peer.send(DataAppended(command.request_id, command.writer_id, last, last - command.num_events, 10 * last))


@asynccontextmanager
async def writing(
    script: Script,
    *,
    carry: Callable[[str, Any], Awaitable[None]] | None = None,
    on_over: Callable[[Any, SegmentOver], None] | None = None,
    **options: Any,
) -> AsyncIterator[tuple[ScriptedStore, ConnectionPool, SegmentWriter]]:
    """A scripted store, a pool with these settings, and a writer that is aborted at the end."""
    async with ScriptedStore(script) as store, ConnectionPool(settings(**options)) as pool:
        writer = SegmentWriter(pool, FixedStore(store.endpoint), SEGMENT, carry=carry, on_over=on_over)
        try:
            yield store, pool, writer
        finally:
            await writer.abort()
