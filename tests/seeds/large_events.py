"""What the seed tests of large events share: streams whose large events are small, and a store that a test plays."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from random import Random
from typing import Any
from uuid import UUID

from segstore.client import Backoff, Client, ClientSettings, ConnectionPool, FixedStore, connect
from segstore.client.errors import RequestRejected, RetriesExhausted
from segstore.client.stream.large_events import LargeEventWriter
from segstore.server.cluster import MockCluster
from segstore.wire import (
    AppendSetup,
    Command,
    ConditionalBlockEnd,
    CreateTransientSegment,
    DataAppended,
    DeleteSegment,
    GetSegmentAttribute,
    Hello,
    MergeSegments,
    SegmentAttribute,
    SegmentCreated,
    SegmentsMerged,
    SetupAppend,
)
from segstore.wire.names import transient_name
from tests.client.support import FAST, ScriptedPeer, ScriptedStore, all_events, make_stream, settings

__all__ = [
    "MIB",
    "NINE_TIMES",
    "NO_VALUE",
    "ONCE",
    "STEPS",
    "Played",
    "asked",
    "big",
    "cut_everywhere",
    "held_at",
    "played",
    "scale",
    "small",
    "stream",
    "transients",
]

MIB = 1024 * 1024
NINE_TIMES = FAST.model_copy(update={"max_attempts": 9})
SMALL = {"max_event_bytes": 1_000, "large_event_chunk_bytes": 1_000, "retry": NINE_TIMES}
NO_VALUE = -(1 << 63)


def big(size: int, seed: int = 1) -> bytes:
    return Random(seed).randbytes(size)


def small(**more: Any) -> ClientSettings:
    return settings(**(SMALL | more))


@asynccontextmanager
async def stream(segments: int = 1, stores: int = 1, **more: Any) -> AsyncIterator[tuple[MockCluster, Client]]:
    async with MockCluster(stores=stores) as mock, connect(f"tcp://{mock.controller_uri}", small(**more)) as pravega:
        await make_stream(pravega, segments)
        yield mock, pravega


async def scale(pravega: Client, parts: int) -> None:
    """Replaces all segments by new ones, unless another scale is in progress."""
    now = await pravega.controller.current_segments("a", "s")
    edges = [number / parts for number in range(parts + 1)]
    try:
        await pravega.controller.scale(
            "a", "s", [each.segment_id for each in now], list(pairwise(edges)), wait_ms=60_000
        )
    except RequestRejected as error:
        if error.details["status"] != "PRECONDITION_FAILED":
            raise


def asked(mock: MockCluster, kind: str) -> int:
    return len(list(mock.requests(f"type = {kind}")))


def transients(mock: MockCluster) -> list[str]:
    names = [name for store in mock.stores for part in store.store.containers.values() for name in part.segments]
    return [name for name in names if "#transient" in name]


@asynccontextmanager
async def held_at(step: str, mock: MockCluster, pravega: Client) -> AsyncIterator[None]:
    """Holds a step of the first large event of several; at the end all are in the stream, in order."""
    mock.faults.add(STEPS[step], nth=1, do="hold", name="step")
    async with pravega.event_writer("a", "s") as writer:
        sent = [b"before", big(3_500), b"between", big(1_200), b"after"]
        done = [await writer.submit(event, routing_key="k") for event in sent]
        await mock.faults.wait_held("step")
        yield
        await asyncio.gather(*done)
    assert await all_events(pravega) == sent


STEPS = {
    "CREATE_TRANSIENT_SEGMENT": "type = CREATE_TRANSIENT_SEGMENT",
    "SETUP_APPEND": "type = SETUP_APPEND and segment ~ '*transient*'",
    "CONDITIONAL_APPEND": "type = CONDITIONAL_APPEND",
    "MERGE_SEGMENTS": "type = MERGE_SEGMENTS",
}
"""The steps of a sequence, as the faults of a store know them."""


class Played:
    """A scripted store that serves large events by the book, but for what a test puts in its way."""

    def __init__(self, **instead: Callable[[ScriptedPeer, Any], bool]) -> None:
        self.instead = instead
        self.chunks: list[ConditionalBlockEnd] = []
        self.merges: list[MergeSegments] = []
        self.ack_at = 0
        """Acknowledges all chunks with one ack when it has so many."""
        self.writer = UUID(int=0)

    def __call__(self, peer: ScriptedPeer, command: Command) -> None:
        special = self.instead.get(type(command).__name__)
        if special is not None and special(peer, command):
            return
        match command:
            case CreateTransientSegment(request_id=id_, writer_id=writer, parent_segment=parent):
                self.writer = writer
                self.chunks.clear()
                peer.send(SegmentCreated(id_, transient_name(parent, writer, "0" * 32)))
            case SetupAppend(request_id=id_, writer_id=writer, segment=segment):
                peer.send(AppendSetup(id_, segment, writer, NO_VALUE))
            case ConditionalBlockEnd(request_id=id_, writer_id=writer, event_number=number):
                self.chunks.append(command)
                if len(self.chunks) >= self.ack_at:
                    peer.send(DataAppended(id_, writer, number, -1, 0))
            case MergeSegments(request_id=id_, target=target, source=source):
                self.merges.append(command)
                peer.send(SegmentsMerged(id_, target, source, 1))
            case GetSegmentAttribute(request_id=id_):
                peer.send(SegmentAttribute(id_, NO_VALUE))
            case DeleteSegment():
                pass  # nobody waits for the answer


@asynccontextmanager
async def played(script: Played, hello: Hello | None = None, **more: Any) -> AsyncIterator[LargeEventWriter]:
    async with ScriptedStore(script) as store, ConnectionPool(small(**more)) as pool:
        if hello is not None:
            store.hello = hello
        yield LargeEventWriter(pool, FixedStore(store.endpoint))


ONCE = Backoff(initial_ms=1, max_ms=1, jitter=0, max_attempts=1)
RESET = {"close": "before", "reset": True}
CUTS: list[Any] = ["close before", "close after", {"close": "after", "reply_bytes": 9}, RESET]


async def cut_at(mock: MockCluster, pravega: Client, event: bytes, fault: tuple[str, int, Any]) -> list[bytes]:
    """Writes the event without a second try, with one fault in the way; what is in the stream after that."""
    mock.faults.clear()
    if fault[0] != "none":
        mock.faults.add(STEPS[fault[0]], nth=fault[1], do=fault[2])
    await pravega.controller.create_stream("a", "s")
    writer = pravega.event_writer("a", "s")
    await writer.open()
    try:
        await writer.write(b"before")
        await writer.write(event)
    except RetriesExhausted:
        await writer.abort()
    else:
        await writer.aclose()
    read = await all_events(pravega)
    await pravega.controller.delete_stream("a", "s")
    return read


async def cut_everywhere(mock: MockCluster, pravega: Client, event: bytes, chunks: int) -> int:
    """Cuts the connection at each frame of the event's way, in each manner; how many cuts that were.

    The client of ONCE does not try again, so what is there then is what one sequence leaves.
    """
    whole, absent = [b"before", event], [b"before"]
    assert await cut_at(mock, pravega, event, ("none", 0, "ok")) == whole
    places = [("CREATE_TRANSIENT_SEGMENT", 1), ("SETUP_APPEND", 1), ("MERGE_SEGMENTS", 1)]
    places += [("CONDITIONAL_APPEND", number) for number in range(1, chunks + 1)]
    for step, number in places:
        for cut in CUTS:
            merged = step == "MERGE_SEGMENTS" and "before" not in str(cut)
            read = await cut_at(mock, pravega, event, (step, number, cut))
            assert read == (whole if merged else absent), (step, number, cut, [len(each) for each in read])
    return len(places) * len(CUTS)
