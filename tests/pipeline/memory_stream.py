"""A stream without a socket: the mock store's own state, and requests that are carried out at once.

What the pipeline asks of `Segments` is answered here by the functions that serve it behind a socket too, so its logic
runs on the real store in milliseconds. `tests/streams` runs the same tests over sockets.

Invariant: a request and its reply, also a refusal, are those of the wire. Not here: connections, retries, tokens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby, pairwise
from types import SimpleNamespace
from typing import Any, TypeVar
from uuid import uuid4

from segstore.client.config import ClientSettings
from segstore.client.connection import SegmentRequests
from segstore.client.controller import Successor, name_of
from segstore.client.errors import NoSuchStream, failure
from segstore.client.routing import SegmentRange
from segstore.client.segment import Chunk
from segstore.client.stream import EventDecoder, FramedEvent, frame_event
from segstore.pipeline.stream.options import StreamOptions
from segstore.pipeline.stream.segments import Segments
from segstore.server.config import StoreSettings
from segstore.server.connection.service import StoreService
from segstore.server.store import NoSuchSegment, SegmentStore
from segstore.wire import Command, ReadSegment, SegmentRead
from segstore.wire import NoSuchSegment as NoSuchSegmentReply
from segstore.wire.hashing import position_of
from segstore.wire.names import segment_id
from tests.server.support import FakeClock

__all__ = ["MemorySegments", "MemoryStream"]

R = TypeVar("R", bound=Command)
CONTAINERS = 4


class MemoryStream:
    """One stream of a store: what the controller and the servers of a cluster are to the pipeline.

    Attributes:
        stores: as those of a cluster, to look into.
        clock_ms, tick_ms: the time, and how much later it is with each look at it. With the default of twenty, an index
            has an entry for each append.
        asked: how many requests there were, by the name of the command or of the controller's method.
    """

    def __init__(self, scope: str, stream: str, segments: int = 1) -> None:
        self.scope, self.stream = scope, stream
        self.store = SegmentStore(CONTAINERS)
        self.stores = [SimpleNamespace(store=self.store)]
        self.epochs: list[list[SegmentRange]] = []
        self.sealed = self.deleted = False
        self.begins: dict[int, int] = {}
        self.clock_ms, self.tick_ms = 0, 20
        self.asked: Counter[str] = Counter()
        self._begin_epoch([], [each / segments for each in range(segments + 1)])

    @property
    def now_ms(self) -> int:
        self.clock_ms += self.tick_ms
        return self.clock_ms

    @property
    def segments(self) -> list[SegmentRange]:
        """All that there ever were, predecessors first."""
        return sorted({each.segment_id: each for epoch in self.epochs for each in epoch}.values())

    def _begin_epoch(self, kept: list[SegmentRange], edges: Sequence[float]) -> None:
        number, first = len(self.epochs), len(self.segments)
        made = []
        for at, (low, high) in enumerate(pairwise(edges)):
            identifier = segment_id(number, first + at)
            made.append(SegmentRange(identifier, name_of(self.scope, self.stream, identifier), low, high))
            self.store.create_segment(made[-1].name, now_ms=self.now_ms)
        self.epochs.append(kept + made)

    def scale(self, parts: int) -> None:
        """All segments give way to so many others."""
        self.replace(self.epochs[-1], [each / parts for each in range(parts + 1)])

    def replace(self, old: list[SegmentRange], edges: Sequence[float]) -> None:
        """Adjacent open segments give way to those between the edges, which cover the same keys."""
        for each in old:
            self.store.container_for(each.name).seal_segment(each.name, now_ms=self.now_ms)
        self._begin_epoch([epoch for epoch in self.epochs[-1] if epoch not in old], edges)

    def write(self, events: Iterable[tuple[bytes, str]]) -> None:
        """Events with routing keys; those that go to one segment one after the other are one append."""

        def target(event: tuple[bytes, str]) -> str:
            at = position_of(event[1])
            return next(epoch.name for epoch in self.epochs[-1] if epoch.low <= at < epoch.high)

        for name, some in groupby(sorted(events, key=target), key=target):
            framed = [frame_event(data) for data, _ in some]
            MemoryWriter(self, name).append(b"".join(framed), print, len(framed))

    def events(self) -> list[FramedEvent]:
        """All of them, those of a segment in order, predecessors first."""
        found: list[FramedEvent] = []
        for segment in self.segments:
            info = self.store.segment_info(segment.name)
            decoder = EventDecoder(segment.name, info.start_offset, ClientSettings().max_large_event_bytes)
            found += decoder.feed(self.store.segment(segment.name).read_bytes(info.start_offset, info.length))
        return found

    # --- as a controller's client -----------------------------------------------------------------------------------

    async def epoch_segments(self, scope: str, stream: str, epoch: int) -> list[SegmentRange]:
        return self.epochs[epoch]

    async def seal_stream(self, scope: str, stream: str) -> None:
        self.sealed = True
        for epoch in self.epochs[-1]:
            self.store.container_for(epoch.name).seal_segment(epoch.name, now_ms=self.now_ms)

    async def delete_stream(self, scope: str, stream: str) -> None:
        self.deleted = True
        for segment in self.segments:
            self.store.delete_segment(segment.name)

    async def truncate_stream(self, scope: str, stream: str, cut: dict[int, int]) -> None:
        self.begins = cut
        for identifier, offset in cut.items():
            self.store.truncate_segment(name_of(scope, stream, identifier), offset, now_ms=self.now_ms)


class MemoryRequests:
    """As `SegmentRequests`, on a store in this process."""

    def __init__(self, stream: MemoryStream) -> None:
        self._stream = stream
        self._service = StoreService(StoreSettings(), stream.store, FakeClock(), lambda: "")
        self._service.now_ms = lambda: stream.now_ms

    async def ask(
        self, segment: str, expected: type[R] | tuple[type[R], ...], make: Callable[[int, str], Command]
    ) -> R:
        command = make(1, "")
        self._stream.asked[type(command).__name__] += 1
        if isinstance(command, ReadSegment):
            return self._read(command)  # type: ignore[return-value]  # the only reply that is expected
        replies: list[Command] = []
        self._service.handle(SimpleNamespace(service=self._service, admin=False, reply=replies.append), command)  # type: ignore[arg-type]  # as far as a session is used
        (reply,) = replies
        if isinstance(reply, expected):
            return reply
        raise failure(reply, endpoint="memory", segment=segment)

    info = SegmentRequests.info

    def _read(self, command: ReadSegment) -> SegmentRead:
        found = self._stream.store.read(command.segment, command.offset, command.suggested_length)
        assert found is not None, f"a read of {command.segment} would wait at {command.offset} for ever"
        data = b"".join(found.data)
        return SegmentRead(command.segment, found.offset, found.at_tail, found.end_of_segment, data, command.request_id)


class MemoryWriter:
    """As `SegmentWriter`: an append is stored at once."""

    def __init__(self, stream: MemoryStream, name: str) -> None:
        self._stream, self._name, self._id = stream, name, uuid4()
        self._last = stream.store.setup_append(name, self._id, now_ms=stream.now_ms)
        self._written = 0

    async def room(self) -> None:
        """There is always some."""

    def append(self, data: bytes | memoryview, heard: Callable[[Any], None], events: int) -> None:
        self._written += 1
        row = self._written, max(1, events), bytes(data), 0
        container = self._stream.store.container_for(self._name)
        container.append(self._name, self._id.bytes, (row,), self._last, self._stream.now_ms)
        self._last = self._written

    async def aclose(self) -> None:
        """All is stored."""

    async def abort(self) -> None:
        """Nothing is under way."""


class MemoryReader:
    """As `SegmentReader`."""

    def __init__(self, stream: MemoryStream, name: str, offset: int) -> None:
        self._stream, self._name, self._offset = stream, name, offset

    async def read(self) -> Chunk:
        try:
            found = self._stream.store.read(self._name, self._offset, 1 << 20)
        except NoSuchSegment as cause:
            raise failure(NoSuchSegmentReply(1, self._name, "", -1), endpoint="memory") from cause
        assert found is not None, f"a reader of {self._name} would wait at {self._offset} for ever"
        data = b"".join(bytes(each) for each in found.data)
        chunk = Chunk(self._offset, data, found.at_tail, found.end_of_segment)
        self._offset += len(data)
        return chunk

    def close(self) -> None:
        """There is nothing to let go of."""


class MemorySegments(Segments):
    """What a task or a driver has of a stream in memory."""

    def __init__(self, stream: MemoryStream, options: StreamOptions) -> None:
        client: Any = SimpleNamespace(pool=SimpleNamespace(settings=options.client_settings()), controller=stream)
        super().__init__(client, None, MemoryRequests(stream), options)  # type: ignore[arg-type]
        self._of = stream

    def _there(self) -> MemoryStream:
        if self._of.deleted or self.stream != self._of.stream:
            name = f"{self.scope}/{self.stream}"
            raise NoSuchStream(f"there is no stream {name}", stream=name)
        return self._of

    async def current(self) -> list[SegmentRange]:
        stream = self._there()
        return [] if stream.sealed else stream.epochs[-1]

    async def head(self) -> dict[int, int]:
        stream = self._there()
        return stream.begins or {epoch.segment_id: 0 for epoch in stream.epochs[0]}

    async def epoch(self, number: int) -> list[SegmentRange]:
        return self._there().epochs[number]

    async def successors(self, segment_id: int) -> list[Successor]:
        stream = self._there()
        stream.asked["successors"] += 1
        for before, after in pairwise(stream.epochs):
            for mine in before:
                if mine.segment_id == segment_id and mine not in after:
                    return [
                        Successor(each, tuple(old.segment_id for old in before if _overlap(old, each)))
                        for each in after
                        if _overlap(mine, each)
                    ]
        return []

    def reader(self, segment: str, offset: int = 0, *, read_ahead: bool = True, known_to: int = 0) -> Any:
        return MemoryReader(self._of, segment, offset)

    def writer(self, segment: str) -> Any:
        return MemoryWriter(self._of, segment)


def _overlap(one: SegmentRange, other: SegmentRange) -> bool:
    return one.low < other.high and other.low < one.high
