"""Runs of appends leave what the same appends leave one by one, whatever happens between them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from unittest.mock import patch
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segstore.server.connection.writers import WriterCounts
from segstore.server.store import Appended, Container, Segment, decode
from segstore.wire import DataAppended, DeleteSegment, ReadSegment, SealSegment, SetupAppend
from segstore.wire.blocks import one_by_one
from segstore.wire.names import index_name, transient_name
from tests.server.support import Desk, FakeClock, create, make_service

if TYPE_CHECKING:
    from segstore.wire.blocks import Row

IDS = [UUID(int=(1 << 100) + each) for each in range(3)]
NAMES = [f"scope/stream/{each}.#epoch.0" for each in range(3)]
TRANSIENT = transient_name(NAMES[0], IDS[0], "0" * 32)
CORE = UUID(int=1)  # the event count


class Journal:
    """Keeps what it is given, and fails at a number of records."""

    def __init__(self) -> None:
        self.operations: list[Any] = []
        self.records: list[bytes] = []
        self.fails_at = -1

    def __call__(self, operation: Any) -> None:
        self.operations.append(operation)

    def add_record(self, record: bytes) -> None:
        if len(self.records) == self.fails_at:
            raise ZeroDivisionError
        self.records.append(record)


class World:
    """A store with two connections. alone: whether each append is stored by itself."""

    def __init__(self, *, alone: bool = False, counted: bool = False, journal: Journal | None = None) -> None:
        self.alone = alone
        self.clock = FakeClock()
        self.service = make_service(self.clock, containers=2)
        self.store = self.service.store
        if journal is not None:
            self.store._journal = lambda _: journal
            for number in tuple(self.store.containers):
                self.store.release(number)
                self.store.own(number)
        if counted:
            self.service.writer_counts = WriterCounts(lambda _: True)
        self.desks = [Desk(self.service), Desk(self.service)]
        self.answers: list[Any] = []
        self.last: dict[tuple[int, UUID], int] = {}
        for name in NAMES:
            self.desks[0].ask(create(name))
        self.store.container_for(TRANSIENT).create_transient_segment(NAMES[0], IDS[0], "0" * 32, now_ms=5)
        for writer, name in zip(IDS, NAMES, strict=True):
            self.set_up(0, writer, name)

    def set_up(self, desk: int, writer: UUID, name: str) -> None:
        self.answers += self.desks[desk].ask(SetupAppend(2, writer, name, ""))
        record = self.desks[desk]._blocks.writers[writer.bytes]
        self.last[desk, writer] = max(getattr(record, "last_stored", 0), 0)

    def store_runs(self, desk: int, runs: list[tuple[UUID, list[tuple[int, int, Any]]]]) -> None:
        """One read brings runs: the steps of the event number, counts and data of their appends."""
        one, items = self.desks[desk], list[Any]()
        for writer, rows in runs:
            if (record := one._blocks.writers.get(writer.bytes)) is not None:
                rising = [rows[0], *((max(0, step), *row) for step, *row in rows[1:])]  # within a run
                items.append((record, [self._row(desk, writer, *row) for row in rising]))
        if items and not one.session.ended:
            one.session.receive_all(one_by_one([items]) if self.alone else [items])
            self.service.answer_waiting()
            self.answers += one.take()

    def _row(self, desk: int, writer: UUID, step: int, count: int, data: Any) -> Row:
        number = self.last[desk, writer] = self.last[desk, writer] + step
        return number, count, data, 7

    def segment(self, at: int = 0) -> Segment:
        return self.store.segment(NAMES[at])

    def change(self, what: str, name: str) -> None:
        container = self.store.container_for(name)
        match what:
            case "seal":
                self.answers += self.desks[1].ask(SealSegment(3, name, ""))
            case "delete":
                self.answers += self.desks[1].ask(DeleteSegment(3, name, ""))
            case "create":
                self.store._make.keywords["reuse_names"] = container._reuse_names = True
                self.answers += self.desks[1].ask(create(name))
            case "truncate" if name in container.segments:
                container.truncate_segment(name, container.segments[name].length)
            case "wait" if name in container.segments and not container.segments[name].sealed:
                self.answers += self.desks[1].ask(ReadSegment(name, container.segments[name].length, 100, "", 5))
            case "seal index" if index_name(name) in container.segments:
                container.segments[index_name(name)].seal()
            case "forget index" if index_name(name) in container.segments:
                container.delete_segment(index_name(name))
            case "leave and return":
                self.store.own(container.container_id, self.store.release(container.container_id))
            case "leave":
                self.store.release(container.container_id).clear()
                self.store.own(container.container_id)
            case "settle":
                self.store.settle_index(self.clock.now_ms())

    def state(self) -> Any:
        segments = {
            (number, name): state_of(each)
            for number, container in self.store.containers.items()
            for name, each in container.segments.items()
        }
        unindexed = [each.unindexed_names for each in self.store.containers.values()]
        writers = [
            {key: (each.last_stored, each.count) for key, each in desk.session._writers.items()} for desk in self.desks
        ]
        ends = [(desk.session.ending, desk.session.why, desk.session.out_bytes) for desk in self.desks]
        return segments, unindexed, writers, ends, self.service.counters, self.answers


def state_of(segment: Segment) -> Any:
    data = segment.read_bytes(segment.start_offset, segment.length - segment.start_offset)
    return (
        data,
        segment.attributes,
        *(
            getattr(segment, name)
            for name in (
                *("length", "event_count", "last_modified_ms", "index_due_ms", "mapped", "gate", "sealed", "charged"),
            )
        ),
    )


kinds = st.sampled_from((bytes, bytearray, memoryview))
datas = st.builds(
    lambda kind, size, each: kind(bytes([each]) * size), kinds, st.sampled_from((0, 1, 9, 100, 300)), st.integers(0, 9)
)
a_row = st.tuples(st.sampled_from((1, 1, 1, 2, 0, -1)), st.sampled_from((1, 1, 3, -2)), datas)
writers = st.sampled_from((*IDS, *IDS, CORE))
a_run = st.tuples(writers, st.lists(a_row, min_size=1, max_size=3))
a_name = st.sampled_from((*NAMES, *NAMES, TRANSIENT))
changes = st.sampled_from((
    *("seal", "delete", "create", "truncate", "wait", "seal index", "forget index", "leave and return", "leave"),
    *("settle", "settle", "settle"),
))  # fmt: skip
a_desk = st.sampled_from((0, 0, 0, 1))
steps = st.lists(
    st.one_of(
        *[st.tuples(st.just("runs"), a_desk, st.lists(a_run, min_size=1, max_size=6))] * 4,
        st.tuples(st.just("set up"), a_desk, st.tuples(writers, a_name)),
        st.tuples(st.just("time"), st.just(0), st.sampled_from((1, 9, 10, 11))),
        st.tuples(st.just("change"), st.just(0), st.tuples(changes, a_name)),
    ),
    max_size=16,
)


@given(steps, st.booleans())
def test_runs_leave_what_single_appends_leave(given: list[Any], counted: bool) -> None:
    worlds = [World(alone=alone, counted=counted) for alone in (False, True)]
    for kind, desk, what in given:
        for world in worlds:
            if kind == "runs":
                world.store_runs(desk, what)
            elif kind == "set up":
                world.set_up(desk, *what)
            elif kind == "time":
                world.clock.advance(what / 1000)
            else:
                world.change(*what)
        assert worlds[0].state() == worlds[1].state()


def test_each_run_is_recorded_once() -> None:
    world = World(journal=(journal := Journal()))
    world.store_runs(0, [(writer, [(1, 2, b"data"), (1, 1, bytearray(b"more"))]) for writer in IDS])
    numbers = [world.store.container_for(name).container_id for name in NAMES]
    assert [record[:8] for record in journal.records] == [
        number.to_bytes(4) + (len(record) - 8).to_bytes(4)
        for number, record in zip(numbers, journal.records, strict=True)
    ]
    assert [decode(record[8:]) for record in journal.records] == [
        Appended(name, b"datamore", 3, world.clock.now_ms(), writer, 2) for name, writer in zip(NAMES, IDS, strict=True)
    ]


def test_an_append_that_the_journal_does_not_take_is_not_acknowledged_but_those_before_it_are() -> None:
    world = World(journal=(journal := Journal()))
    journal.fails_at = 1
    session = world.desks[0].session
    with pytest.raises(ZeroDivisionError):
        world.store_runs(0, [(writer, [(1, 1, b"data"), (1, 1, b"more")]) for writer in IDS])
    assert world.desks[0].take() == [DataAppended(7, IDS[0], 1, -(1 << 63), 4), DataAppended(7, IDS[0], 2, 1, 8)]
    assert [session._writers[key].last_stored for key in session._writers] == [2, -(1 << 63), -(1 << 63)]
    assert world.service.counters.appends == 2


def test_an_index_that_cannot_be_updated_stores_nothing_of_its_run() -> None:
    world = World()
    world.clock.advance(1)
    world.segment(1).index_due_ms = 0
    world.segment(0).index_due_ms = world.clock.now_ms() + 1
    with patch.object(Container, "_write_index_entry", side_effect=ZeroDivisionError), pytest.raises(ZeroDivisionError):
        world.store_runs(0, [(writer, [(1, 1, b"data")]) for writer in IDS])
    assert [world.segment(at).length for at in range(3)] == [4, 0, 0]
    assert world.desks[0].take() == [DataAppended(7, IDS[0], 1, -(1 << 63), 4)]
