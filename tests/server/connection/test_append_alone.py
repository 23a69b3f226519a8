"""Whole appends are stored in runs: what is answered and kept is what single appends leave."""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from segstore.server.clock import LoopClock
from segstore.server.config import StoreSettings
from segstore.server.connection import Connection, ConnectionHub, StoreService
from segstore.server.connection.receiving import Received
from segstore.server.connection.writers import Item
from segstore.server.durable import Gate
from segstore.server.store import SegmentStore
from segstore.server.store.attributes import SCALE_POLICY_RATE
from segstore.wire import (
    AppendBlock,
    AppendBlockEnd,
    CreateSegment,
    DataAppended,
    FrameDecoder,
    Hello,
    KeepAlive,
    ReadSegment,
    SealSegment,
    SetupAppend,
    encode,
)
from segstore.wire.blocks import one_by_one
from segstore.wire.names import index_name
from tests.looped import looped

SEGMENT = "scope/stream/0.#epoch.0"
WRITERS = [UUID(int=1), UUID(int=2)]


class Transport:
    """Takes what is written, and never closes before it is told."""

    def __init__(self) -> None:
        self.written = b""
        self.closed = False

    def get_extra_info(self, name: str, default: object = None) -> object:
        return default if name == "socket" else ("127.0.0.1", 1)

    def write(self, data: bytes) -> None:
        self.written += data

    def writelines(self, data: list[bytes]) -> None:
        self.written += b"".join(data)

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    abort = close

    def set_write_buffer_limits(self, high: int) -> None: ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


class HeldGate(Gate):
    """Holds all replies since the last `let_go`."""

    full = False

    def __init__(self) -> None:
        super().__init__(0)
        self.mark = 1

    def let_go(self) -> None:
        self.committed, self.mark = self.mark, self.mark + 1
        self._release()
        assert not self.held


class ReceivedOneByOne(Received):
    """Requests without runs."""

    __slots__ = ()

    def decode(self) -> list[Item]:
        return list[Item](one_by_one(super().decode()))


class OneByOne(Connection):
    """A connection whose appends come one by one."""

    __slots__ = ()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.received.__class__ = ReceivedOneByOne


class Side:
    """A store with one connection, its time standing still."""

    def __init__(self, kind: type[Connection], gate: HeldGate | None) -> None:
        clock = LoopClock()
        clock.now_ms = lambda: 5_000  # type: ignore[method-assign]
        self.store = SegmentStore()
        self.service = StoreService(StoreSettings(), self.store, clock, lambda: "0" * 32)
        self.gate = gate
        self.hub = ConnectionHub(self.service, gate)
        self.connection = kind(self.hub)
        self.transport = Transport()
        self.connection.connection_made(self.transport)  # type: ignore[arg-type]
        self.read(encode(Hello(17, 5)), encode(CreateSegment(1, SEGMENT, 0, 0, "", 0)))
        for writer in WRITERS:
            self.read(encode(SetupAppend(2, writer, SEGMENT, "")))

    def read(self, *frames: bytes) -> None:
        if self.transport.closed:
            return
        data = b"".join(frames)
        self.connection.get_buffer(-1)[: len(data)] = data
        self.connection.buffer_updated(len(data))

    def state(self) -> tuple[object, ...]:
        segment = self.store.segment(SEGMENT)
        counters = self.service.counters
        return (
            segment.read_bytes(0, segment.length),
            dict(segment.attributes),
            segment.event_count,
            segment.last_modified_ms,
            counters,
            self.transport.written,
            self.transport.closed,
            self.connection.session is not None and self.connection.session.why,
        )

    def close(self) -> None:
        self.connection.connection_lost(None)


class Alikes(NamedTuple):
    """Appends of one size in one read, whose last `left` bytes come in a read of their own."""

    size: int
    writers: list[int]
    left: int


def append(writer: UUID, number: int, data: bytes, events: int = 1) -> bytes:
    return encode(AppendBlock(writer, data)) + encode(AppendBlockEnd(writer, len(data), b"", events, number, number))


anybody = st.sampled_from([*WRITERS, UUID(int=3)])
appends = st.builds(append, anybody, st.integers(0, 9), st.binary(max_size=30), st.integers(0, 2))
others = st.sampled_from([
    encode(KeepAlive()),
    encode(SetupAppend(4, WRITERS[0], SEGMENT, "")),
    encode(AppendBlock(WRITERS[0], b"open")),
    encode(ReadSegment(SEGMENT, 0, 100, "", 5)),
    encode(SealSegment(6, SEGMENT, "")),
])  # fmt: skip
growing = st.builds(lambda step, data: (step, data), st.integers(1, 3), st.binary(max_size=300))
together = st.lists(st.one_of(appends, appends, appends, others), min_size=2, max_size=6)
few, many = (st.lists(st.integers(0, 1), min_size=size, max_size=size + 5) for size in (1, 254))
alike = st.builds(Alikes, st.integers(0, 20), st.one_of(few, few, few, many), st.integers(0, 60))
steps = st.lists(
    st.one_of(growing, growing, growing, appends, others, together, alike, st.just("let go"), st.just("half")),
    max_size=12,
)


@looped("held", [False, True])
@given(steps)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_an_append_alone_leaves_what_it_leaves_among_others(held: bool, given: list[Any]) -> None:
    async def run() -> None:
        sides = [Side(kind, HeldGate() if held else None) for kind in (Connection, OneByOne)]
        for side in sides:
            number = 10
            for step in given:
                if isinstance(step, list):
                    side.read(*step)
                elif isinstance(step, Alikes):
                    numbers = range(number + 1, number + 1 + len(step.writers))
                    frames = b"".join(
                        append(WRITERS[writer], each, bytes(step.size))
                        for writer, each in zip(step.writers, numbers, strict=True)
                    )
                    number = numbers[-1]
                    side.read(frames[: len(frames) - step.left])
                    side.read(frames[len(frames) - step.left :])
                elif step == "let go":
                    if side.gate is not None:
                        side.gate.let_go()
                elif step == "half":
                    frame = append(WRITERS[1], number, b"in two reads")
                    number += 1
                    side.read(append(WRITERS[1], number, b"before"), frame[:9])
                    side.read(frame[9:])
                elif isinstance(step, bytes):
                    side.read(step)
                else:
                    number += step[0]
                    side.read(append(WRITERS[0], number, step[1]))
                await asyncio.sleep(0)
            if side.gate is not None:
                side.gate.let_go()
        one, other = sides
        assert one.state() == other.state()
        for side in sides:
            side.close()

    asyncio.run(run())


async def test_nothing_is_left_of_a_read_when_the_fence_ends_the_connection() -> None:
    side = Side(Connection, HeldGate())
    side.hub.fence = lambda: side.connection.failed("its containers are another store's now")
    side.read(append(WRITERS[0], 1, b"data"), encode(ReadSegment(SEGMENT, 0, 100, "", 5)))
    assert not side.connection.received.is_pending()
    assert side.transport.closed
    assert side.store.segment(SEGMENT).length == 0
    side.close()


async def test_an_append_alone_wakes_a_reader_of_the_same_connection() -> None:
    side = Side(Connection, None)
    side.read(encode(ReadSegment(SEGMENT, 0, 100, "", 5)))
    side.transport.written = b""
    side.read(append(WRITERS[0], 1, b"woken"))
    await asyncio.sleep(0)
    assert b"woken" in side.transport.written
    acknowledged = side.transport.written.index(WRITERS[0].bytes)
    assert acknowledged < side.transport.written.index(b"woken")
    side.close()


async def test_requests_that_wait_keep_their_payloads_when_more_is_read_and_the_buffer_is_given_back() -> None:
    side = Side(Connection, None)
    connection, hub = side.connection, side.hub
    lent = hub.buffers.view
    assert hub.buffers.lend(6)
    lent[:6] = b"stored"
    assert connection.received.blocks is not None
    block = AppendBlock(WRITERS[0], lent[:6])
    received = connection.received
    received.backlog = received.blocks.feed_all([block, AppendBlockEnd(WRITERS[0], 6, b"", 1, 1, 1)])
    received._data = lent
    side.read(append(WRITERS[0], 2, b"behind"))
    lent[:6] = b"others"  # it was given back, and another connection is read into it
    connection._catch_up()
    assert side.store.segment(SEGMENT).read_bytes(0, 12) == b"storedbehind"
    side.close()


@looped("waits", [False, True])
@looped("reads", [1, 4])
async def test_appends_before_the_one_that_memory_has_no_room_for_are_acknowledged(reads: int, waits: bool) -> None:
    side = Side(Connection, None)
    if waits:  # a tail read, which each append may wake
        side.read(encode(ReadSegment(SEGMENT, 0, 100, "", 9)))
    memory = side.store.pool.memory
    memory.limit = memory.used + 1000
    side.transport.written = b""
    frames = [append(WRITERS[0], number, bytes(size)) for number, size in enumerate((10, 20, 5000, 30), 1)]
    for at in range(0, 4, 4 // reads):
        side.read(*frames[at : at + 4 // reads])
    assert side.store.segment(SEGMENT).length == 30
    acknowledged = [each for each in FrameDecoder().feed(side.transport.written) if type(each) is DataAppended]
    assert acknowledged == [DataAppended(1, WRITERS[0], 1, -(1 << 63), 10), DataAppended(2, WRITERS[0], 2, 1, 30)]
    assert side.service.counters.appends == 2
    assert side.transport.closed
    assert "the store is full" in side.connection.session.why
    side.close()


async def test_a_writer_whose_id_is_a_core_attribute_is_told_that_the_store_is_full() -> None:
    side = Side(Connection, None)
    side.read(encode(SetupAppend(3, SCALE_POLICY_RATE, SEGMENT, "")))
    side.store.pool.memory.limit = side.store.pool.memory.used + 10
    side.read(append(SCALE_POLICY_RATE, 1, bytes(1000)))
    assert "the store is full" in side.connection.session.why
    assert side.store.segment(SEGMENT).length == 0
    side.close()


async def test_what_nobody_foresaw_ends_the_connection_of_an_append_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    side = Side(Connection, None)
    side.read(append(WRITERS[0], 1, b"first"))

    def fails(*_: object) -> None:
        raise MemoryError("no more")

    container = side.store.container_for(SEGMENT)
    monkeypatch.setattr(container, "update_index", fails)
    container.segment(SEGMENT).index_due_ms = 0
    del container.segments[index_name(SEGMENT)]  # so that an entry cannot just be written
    side.read(append(WRITERS[0], 2, b"second"))
    assert side.transport.closed
    assert side.service.counters.internal_errors == 1
    side.close()


async def test_a_container_that_comes_back_as_another_one_is_written_to() -> None:
    side = Side(Connection, None)
    side.read(append(WRITERS[0], 1, b"a"))
    old = side.store.release(0)
    new = side.store.own(0)
    new.create_segment(SEGMENT, now_ms=5)
    last = new.setup_append(SEGMENT, WRITERS[0], now_ms=5)
    new.append(SEGMENT, WRITERS[0].bytes, ((1, 1, b"a", 0),), last, 5)
    side.read(append(WRITERS[0], 2, b"b"))
    side.read(append(WRITERS[0], 3, b"c"))
    assert new.segment(SEGMENT).read_bytes(0, 3) == b"abc"
    assert old.segment(SEGMENT).length == 1
    side.close()


async def test_a_segment_that_was_created_again_is_found_again() -> None:
    side = Side(Connection, None)
    side.read(append(WRITERS[0], 1, b"a"))
    (container,) = side.store.containers.values()
    container._reuse_names = True
    container.delete_segment(SEGMENT)
    container.create_segment(SEGMENT, now_ms=5)
    container.setup_append(SEGMENT, WRITERS[0], now_ms=5)
    container.segment(SEGMENT).attributes[WRITERS[0].bytes] = 1
    side.read(append(WRITERS[0], 2, b"b"))
    assert container.segment(SEGMENT).read_bytes(0, 1) == b"b"
    side.close()


async def test_what_was_stored_before_the_disk_had_enough_is_acknowledged_while_the_rest_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gate = HeldGate()
    side = Side(Connection, gate)
    gate.let_go()
    side.transport.written = b""
    container = side.store.container_for(SEGMENT)
    carried_out = container.append

    def fills(*given: Any) -> list[int]:
        gate.full = True
        return carried_out(*given)

    monkeypatch.setattr(container, "append", fills)
    side.read(append(WRITERS[0], 1, b"first"))
    side.read(encode(KeepAlive()), append(WRITERS[0], 2, b"second"))
    gate.let_go()
    assert FrameDecoder().feed(side.transport.written) == [DataAppended(1, WRITERS[0], 1, -(1 << 63), 5)]
    gate.full, stalled, gate.stalled = False, gate.stalled, {}
    for each in stalled:
        each.go_on()
    await asyncio.sleep(0)
    gate.let_go()
    assert FrameDecoder().feed(side.transport.written)[1:] == [KeepAlive(), DataAppended(2, WRITERS[0], 2, 1, 11)]
    side.close()
