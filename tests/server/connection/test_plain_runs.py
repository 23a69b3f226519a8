"""Runs that are stored by `store_plain`, in C and in Python: as if each had been stored by `Container.append`."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any
from unittest.mock import patch
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segstore.server.connection import session as session_module
from segstore.server.connection.writers import Writer, WriterCounts, store_plain
from segstore.server.store import Appended, Container, Segment, SegmentStore, decode
from segstore.wire import DeleteSegment, ReadSegment, SealSegment, SetupAppend
from segstore.wire.blocks import acknowledger
from segstore.wire.codec import codec_backend
from segstore.wire.names import index_name, transient_name
from tests.looped import looped
from tests.server.support import Desk, FakeClock, create, make_service

if TYPE_CHECKING:
    from collections.abc import Callable

    from segstore.wire.blocks import Row, Run

IDS = [UUID(int=(1 << 100) + each) for each in range(3)]
NAMES = [f"scope/stream/{each}.#epoch.0" for each in range(3)]
TRANSIENT = transient_name(NAMES[0], IDS[0], "0" * 32)
CORE = UUID(int=1)  # the event count
IN_PYTHON = getattr(store_plain, "__wrapped__", store_plain)
ACKNOWLEDGE = acknowledger(17)


class Journal:
    """Keeps what it is given, and fails at a number of records."""

    def __init__(self, fails_at: int = -1) -> None:
        self.runs: list[Any] = []
        self._fails_at = fails_at

    def __call__(self, operation: Any) -> None:
        self.runs.append(repr(operation))

    def add_record(self, record: bytes) -> None:
        if len(self.runs) == self._fails_at:
            raise ZeroDivisionError
        self.runs.append(record)


class Records:
    """Keeps records, without a call of Python."""

    def __init__(self) -> None:
        self.records: list[bytes] = []
        self.add_record = self.records.append

    def __call__(self, _: Any) -> None: ...


def never(_: Any, start: int, *__: Any) -> tuple[int, int]:
    """Leaves all runs to `Container.append`."""
    return start, 0


class World:
    """A store with connections whose runs are stored by a function."""

    def __init__(self, store_by: Callable[..., tuple[int, int]], *, journalled: bool, counted: bool) -> None:
        self.store_by = store_by
        self.journalled = journalled
        self.clock = FakeClock()
        self.service = make_service(self.clock, containers=2)
        self.store = self.service.store
        self.journal = Journal()
        if journalled:
            self.store._journal = lambda _: self.journal
            for number in tuple(self.store.containers):
                self.store.release(number)
                self.store.own(number)
        if counted:
            self.service.writer_counts = WriterCounts(lambda _: True)
        self.desks = [Desk(self.service), Desk(self.service)]
        self.answers: list[Any] = []
        self.given: dict[tuple[int, UUID], int] = {}
        for name in NAMES:
            self.desks[0].ask(create(name))
        self.store.container_for(TRANSIENT).create_transient_segment(NAMES[0], IDS[0], "0" * 32, now_ms=5)

    def set_up(self, desk: int, writer: UUID, name: str) -> None:
        self.answers += self.desks[desk].ask(SetupAppend(2, writer, name, ""))
        record = self.desks[desk]._blocks.writers[writer.bytes]
        self.given[desk, writer] = max(getattr(record, "last_stored", 0), 0)

    def store_runs(self, desk: int, runs: list[tuple[UUID, list[tuple[int, int, Any]]]]) -> None:
        """One read brings runs: the steps of the event number, counts and data of their appends."""
        one, items = self.desks[desk], list[Any]()
        for writer, rows in runs:
            if (record := one._blocks.writers.get(writer.bytes)) is not None:
                numbered = [self._row(desk, writer, *row) for row in rows]
                items.append((record, numbered))
        if items and not one.session.ended:
            with patch.object(session_module, "store_plain", self.store_by):
                one.session.receive_all([items] if self.store_by is store_plain else (items,))  # a tuple is Python's
            self.service.answer_waiting()
            self.answers += one.take()

    def _row(self, desk: int, writer: UUID, step: int, count: int, data: Any) -> Row:
        number = self.given[desk, writer] = self.given[desk, writer] + step
        if self.journalled and isinstance(data, memoryview):
            data = memoryview(bytes(data))  # records are made of contiguous data only
        return number, count, data, 7

    def change(self, what: str, name: str) -> None:
        container = self.store.container_for(name)
        match what:
            case "seal":
                self.answers += self.desks[1].ask(SealSegment(3, name, ""))
            case "delete":
                self.answers += self.desks[1].ask(DeleteSegment(3, name, ""))
            case "create":
                self.store._reuse_names = container._reuse_names = True
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
            case "leave" if not self.journal.runs:
                self.store.release(container.container_id).clear()
                self.store.own(container.container_id)
            case "settle":
                self.store.settle_index(self.clock.now_ms())
            case "fill":
                memory = self.store.pool.memory
                memory.limit = memory.used + 600

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
        counters = self.service.counters, self.store.pool.memory.used
        return segments, unindexed, writers, ends, counters, self.answers, self.journal.runs


def state_of(segment: Segment) -> Any:
    data = segment.read_bytes(segment.start_offset, segment.length - segment.start_offset)
    return (
        data,
        segment.attributes,
        *(
            getattr(segment, name)
            for name in (
                *("length", "event_count", "last_modified_ms", "index_due_ms", "mapped", "gate", "sealed"),
                *("_tail_used", "_tail_size", "charged"),
            )
        ),
    )


kinds = st.sampled_from((bytes, bytearray, memoryview, lambda data: memoryview(bytes(2 * len(data)))[::2]))
datas = st.builds(
    lambda kind, size, each: kind(bytes([each]) * size), kinds, st.sampled_from((0, 1, 9, 100, 300)), st.integers(0, 9)
)
a_row = st.tuples(st.sampled_from((1, 1, 1, 2, 0, -1)), st.sampled_from((1, 1, 3, -2)), datas)
writers = st.sampled_from((*IDS, *IDS, CORE))
a_run = st.tuples(writers, st.lists(a_row, min_size=1, max_size=3))
a_name = st.sampled_from((*NAMES, *NAMES, TRANSIENT))
changes = st.sampled_from((
    *("seal", "delete", "create", "truncate", "wait", "seal index", "forget index", "leave and return", "leave"),
    *("settle", "settle", "settle", "fill"),
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


@given(steps, st.booleans(), st.booleans())
def test_plain_runs_leave_what_container_append_leaves(given: list[Any], journalled: bool, counted: bool) -> None:
    worlds = [World(each, journalled=journalled, counted=counted) for each in (store_plain, IN_PYTHON, never)]
    for world in worlds:
        for at, writer in enumerate(IDS):
            world.set_up(0, writer, NAMES[at])
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
        states = [world.state() for world in worlds]
        assert states[0] == states[2]
        assert states[1] == states[2]


class Runs:
    """A store with a writer for each of `count` segments, and a run of each."""

    def __init__(self, count: int = 4, *, indexed: bool = True, now_ms: int = 1_000_000) -> None:
        self.store = SegmentStore(1, reuse_names=True)
        self.container = self.store.containers[0]
        self.now_ms = now_ms
        self.acks = bytearray(b"before")
        self.runs: list[Run] = []
        for at in range(count):
            name = f"scope/stream/{at}.#epoch.0" if indexed else f"_system/{at}"
            self.store.create_segment(name, now_ms=now_ms)
            writer = Writer(name, UUID(int=(at << 64) + 5))
            writer.set_up(self.container, self.container.setup_append(name, writer.writer_id, now_ms=now_ms), None)
            self.runs.append((writer, []))
        self.store_by(never_plain, 200)
        self.number(300)

    def number(self, number: int) -> None:
        """Sets the first event number of each run."""
        for at, (writer, _) in enumerate(self.runs):
            self.runs[at] = writer, [(number, 2, b"data", 9), (number + 1, 1, bytearray(b"more"), 10)]

    def store_by(self, call: Callable[..., Any], number: int = 0) -> Any:
        """number: the first event number of each run, if it is not to stay."""
        if number:
            self.number(number)
        return call(self.runs, 0, self.store.containers, self.now_ms, ACKNOWLEDGE, self.acks)

    def record_in(self, journal: Any) -> None:
        """Records what is stored from now on."""
        self.container._journal = journal
        for writer, _ in self.runs:
            assert isinstance(writer, Writer)
            writer.move_to(self.container)

    def segment(self, at: int = 0) -> Segment:
        return self.container.segments[self.runs[at][0].segment]

    def state(self) -> Any:
        indexes = [state_of(each) for each in self.container.segments.values()]
        return bytes(self.acks), [getattr(writer, "last_stored", None) for writer, _ in self.runs], indexes


def never_plain(runs: list[Run], _: int, __: Any, now_ms: int, ___: Any, ____: bytearray) -> None:
    """Stores by `Container.append`."""
    for writer, rows in runs:
        assert isinstance(writer, Writer)
        writer.container.append(writer.segment, writer.id_bytes, rows, writer.last_stored, now_ms)
        writer.last_stored = rows[-1][0]


BOTH = (store_plain, IN_PYTHON)
DELETED = object()
RELEASED = memoryview(bytearray(99))
RELEASED.release()


def test_all_plain_runs_are_stored_and_acknowledged() -> None:
    for call in BOTH:
        made = Runs(4)
        assert made.store_by(call, 500) == (4, 8)
        assert len(made.acks) == 6 + 8 * 56
        assert [writer.last_stored for writer, _ in made.runs if isinstance(writer, Writer)] == [501] * 4
        assert made.segment().read_bytes(0, 16) == b"datamoredatamore"


def test_storing_begins_at_the_run_that_is_given_and_ends_before_one_that_is_not_plain() -> None:
    for call in BOTH:
        made = Runs(4)
        made.segment(2).seal()
        assert call(made.runs, 1, made.store.containers, made.now_ms, ACKNOWLEDGE, made.acks) == (2, 2)
        assert call(made.runs, 2, made.store.containers, made.now_ms, ACKNOWLEDGE, made.acks) == (2, 0)
        assert call(made.runs, 4, made.store.containers, made.now_ms, ACKNOWLEDGE, made.acks) == (4, 0)
        assert [getattr(writer, "last_stored", 0) for writer, _ in made.runs] == [201, 301, 201, 201]


def broken(runs: Runs, what: str) -> None:
    """Makes the second run one that is not plain."""
    writer, rows = runs.runs[1]
    segment, container = runs.segment(1), runs.container
    assert isinstance(writer, Writer)
    match what:
        case "the writer is not set up":
            writer.is_set_up = False
        case "the writer is another record":
            runs.runs[1] = session_module.BlockWriter(writer.segment, writer.writer_id), rows
        case "the writer was never set up":
            runs.runs[1] = Writer(writer.segment, writer.writer_id), rows
        case "the segment is gone":
            container.delete_segment(segment.name)
        case "the segment was created again":
            container.delete_segment(segment.name)
            container.create_segment(segment.name, now_ms=7)
        case "the segment is sealed":
            segment.seal()
        case "a reader waits":
            container.wait(segment.name, segment.length, object())  # type: ignore[arg-type]  # it is not woken
        case "another connection wrote":
            segment.attributes[writer.id_bytes] += 1
        case "the segment does not know the writer":
            del segment.attributes[writer.id_bytes]
        case "the number falls":
            runs.runs[1] = writer, [(1, 1, b"x", 5)]
        case "the container has left":
            writer.move_to(SegmentStore(1).containers[0])
        case "the chunk is full":
            runs.runs[1] = writer, [(900, 1, bytes(segment._tail_size - segment._tail_used + 1), 5)]


NOT_PLAIN = [
    *("the writer is not set up", "the writer is another record", "the writer was never set up"),
    *("the segment is gone", "the segment was created again", "the segment is sealed", "a reader waits"),
    *("another connection wrote", "the segment does not know the writer", "the number falls"),
    *("the container has left", "the chunk is full"),
]


@looped("what", NOT_PLAIN)
def test_a_run_that_is_not_plain_is_left_as_it_is(what: str) -> None:
    for call in BOTH:
        made, same = Runs(3), Runs(3)
        for each in (made, same):
            broken(each, what)
        assert made.store_by(call) == (1, 2)
        same.runs[:] = same.runs[:1]
        assert same.store_by(call) == (1, 2)
        assert made.state()[0] == same.state()[0]
        assert made.state()[2] == same.state()[2]


def test_an_index_entry_that_is_due_is_written_before_the_append() -> None:
    for call in BOTH:
        made, expected = Runs(2), Runs(2)
        for number, passed_ms in ((500, 5), (600, 5), (700, 1), (800, 50), (900, 9), (1000, 1)):
            for each, by in ((made, call), (expected, never_plain)):
                each.now_ms += passed_ms
                each.store_by(by, number)
            assert made.state()[1:] == expected.state()[1:]
        index = made.container.segments[index_name(made.segment().name)]
        assert index.length == 3 * 24


@looped(
    "change",
    [
        lambda index: index.seal(),
        lambda index: setattr(index, "index_entry_size", None),
        lambda index: setattr(index, "event_count", None),
        lambda index: setattr(index, "event_count", 1 << 40),
        lambda index: setattr(index, "event_count", 1 << 63),
        lambda index: index.cut_tail(),
        lambda index: index.watch(index.waiters),
    ],
)
def test_an_index_is_updated_as_by_container_append_whatever_its_state(change: Callable[[Segment], None]) -> None:
    for call in BOTH:
        made, expected = Runs(2), Runs(2)
        for each, by in ((made, call), (expected, never_plain)):
            change(each.container.segments[index_name(each.segment().name)])
            for number in (500, 600):
                each.now_ms += 10
                each.store_by(by, number)
        assert made.state()[1:] == expected.state()[1:]


def test_an_index_that_is_in_no_container_or_was_created_again_is_found_by_python() -> None:
    for call in BOTH:
        made, expected = Runs(2), Runs(2)
        for each, by in ((made, call), (expected, never_plain)):
            name = index_name(each.segment().name)
            each.container.delete_segment(name)
            for number in (500, 600, 700):
                each.now_ms += 10
                if number == 600:
                    each.container.create_index_segment(name, now_ms=3)
                each.store_by(by, number)
        assert made.state()[1:] == expected.state()[1:]


def test_segments_without_an_index_are_plain_at_any_time() -> None:
    for call in BOTH:
        made = Runs(2, indexed=False, now_ms=(1 << 62))
        assert made.store_by(call, 500) == (2, 4)


def test_a_problem_of_an_index_is_raised_and_what_was_stored_before_it_is_acknowledged() -> None:
    for call in BOTH:
        made = Runs(3)
        made.now_ms += 10
        made.segment(1).index = None
        with patch.object(Container, "_write_index_entry", side_effect=ZeroDivisionError):
            made.segment(0).index_due_ms = made.now_ms + 1
            with pytest.raises(ZeroDivisionError):
                made.store_by(call, 500)
        assert len(made.acks) == 6 + 2 * 56
        assert [getattr(writer, "last_stored", 0) for writer, _ in made.runs] == [501, 201, 201]


def test_an_index_that_python_does_not_bring_up_to_date_leaves_the_run_to_the_caller() -> None:
    made = Runs(2)
    made.now_ms += 10
    made.segment(1).index = None
    with patch.object(Container, "update_index") as update:
        made.segment(0).index_due_ms = made.now_ms + 1
        assert made.store_by(store_plain, 500) in ((1, 2), (2, 4))
    assert update.call_count == 2 if codec_backend == "c" else 1


def test_acknowledgements_that_are_viewed_are_a_buffer_error() -> None:
    for call in BOTH:
        made = Runs(2)
        with memoryview(made.acks), pytest.raises(BufferError):
            made.store_by(call, 500)


@looped("name", ["id_bytes", "is_set_up", "last_stored", "container_id", "found", "add_record"])
@looped("odd", [None, -1, 1.5, "text", 1 << 70, {}, [], b"short", bytes(16), DELETED])
def test_a_writer_with_an_odd_slot_has_the_outcome_that_it_has_in_python(name: str, odd: Any) -> None:
    _alike(lambda runs: put(runs.runs[0][0], name, odd))


@looped("name", ["attributes", "_tail", "_tail_used", "length", "event_count", "gate", "index_due_ms"])
@looped(
    "odd",
    [
        *(None, -1, 1.5, "text", 1 << 63, (1 << 63) - 1, 1000, {}, b"data", memoryview(b"x" * 99)),
        *(memoryview(bytearray(99))[::3], RELEASED, DELETED),
    ],
)
def test_a_segment_with_an_odd_slot_has_the_outcome_that_it_has_in_python(name: str, odd: Any) -> None:
    _alike(lambda runs: put(runs.segment(), name, odd))


@looped("name", ["_tail", "length", "event_count", "gate", "index_entry_size", "name", "mapped"])
@looped("odd", [None, -1, 1.5, "text", 1 << 63, (1 << 63) - 1, 1000, {}, b"data"])
def test_an_index_with_an_odd_slot_has_the_outcome_that_it_has_in_python(name: str, odd: Any) -> None:
    _alike(lambda runs: setattr(runs.container.segments[index_name(runs.segment().name)], name, odd))


@looped(
    "run", [None, (), [None, None], (None,), (None, []), (None, None), (None, [None]), (None, [()]), (None, (1, 2, 3))]
)
def test_an_odd_run_has_the_outcome_that_it_has_in_python(run: Any) -> None:
    def change(runs: Runs) -> None:
        runs.runs[0] = run if type(run) is not tuple or len(run) != 2 else (runs.runs[0][0], run[1])

    _alike(change)


@looped(
    "row",
    [
        *((500, 1, b"x"), (500, 1, None, 5), (500, "1", b"x", 5), [500, 1, b"x", 5], (500, 1 << 40, b"x", 5)),
        *(("500", 1, b"x", 5), (500, 1, b"x", "5"), (500, 1, b"x", 1 << 63), (1 << 63, 1, b"x", 5), (400, 1, b"x", 5)),
        *((500.5, 1, b"x", 5), (500, 1, memoryview(b"1234").cast("I"), 5), (500, 1, memoryview(b"1234")[::2], 5)),
    ],
)
@looped("first", [False, True])
def test_an_odd_append_has_the_outcome_that_it_has_in_python(row: Any, first: bool) -> None:
    def change(runs: Runs) -> None:
        _, rows = runs.runs[0]
        rows[:] = [row, (500, 1, b"data", 5)] if first else [(450, 1, b"data", 5), row]

    _alike(change)


def _alike(change: Callable[[Runs], None]) -> None:
    """What C and Python do with a change of one run, where an index entry is due, in front of others or behind them."""
    for at in range(5):
        found = []
        for call in BOTH:
            made = Runs(5)
            made.now_ms += 10
            change(made)
            made.runs.insert(at, made.runs.pop(0))
            try:
                result: Any = call(made.runs, 0, made.store.containers, made.now_ms, ACKNOWLEDGE, made.acks)
                if at and result == (at, 2 * at):  # C may decline a run behind the first, which Python then stores
                    result = call(made.runs, at, made.store.containers, made.now_ms, ACKNOWLEDGE, made.acks)
                    result = result[0], result[1] + 2 * at
            except Exception as error:  # noqa: BLE001 — of whatever kind, it is to be the same
                result = type(error)
            found.append((result, bytes(made.acks), [repr(writer_state(each)) for each in made.runs], slots_of(made)))
        assert found[0] == found[1]


def put(owner: Any, name: str, value: Any) -> None:
    """Sets an attribute, or deletes it if the value is DELETED."""
    if value is DELETED:
        delattr(owner, name)
    else:
        setattr(owner, name, value)


def writer_state(run: Any) -> Any:
    return getattr(run[0], "last_stored", None) if isinstance(run, tuple) and run else None


def slots_of(runs: Runs) -> list[Any]:
    names = [name for cls in Segment.__mro__ for name in getattr(cls, "__slots__", ())]
    names = [name for name in names if name not in ("_pool", "_tail", "_chunks", "index", "table")]
    return [
        [b"".join(map(bytes, each._chunks)), *(repr(getattr(each, name, DELETED)) for name in names)]  # type: ignore[arg-type]
        for each in runs.container.segments.values()
    ]


class Meddling:
    """A key that is equal to none, and changes something when it is compared."""

    def __init__(self, like: Any, change: Callable[[], None]) -> None:
        self._hash = hash(like)
        self._change = change

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, _: object) -> bool:
        self._change()
        return False


@looped("where", ["containers", "attributes"])
def test_keys_whose_code_takes_everything_away_do_no_harm(where: str) -> None:
    for call in BOTH:
        made = Runs(2)
        writer, segment, container = made.runs[0][0], made.segment(), made.container
        assert isinstance(writer, Writer)

        def take_away(made: Runs = made, writer: Writer = writer, segment: Segment = segment) -> None:
            made.runs.clear()
            writer.found, writer.id_bytes = None, bytes(16)
            segment.attributes = {}
            segment.cut_tail()

        containers: dict[Any, Container] = made.store.containers
        held: dict[Any, Any] = {"attributes": segment.attributes}.get(where, containers)
        like: Any = {"attributes": writer.id_bytes}.get(where, container.container_id)
        kept = dict(held)
        held.clear()
        held[Meddling(like, take_away)] = None
        held.update(kept)
        try:
            call(made.runs, 0, containers, made.now_ms, ACKNOWLEDGE, made.acks)
        except IndexError:
            assert call is IN_PYTHON, "a list that has become shorter"


def test_each_run_is_recorded_once_it_is_stored() -> None:
    found = []
    for call in (*BOTH, never_plain):
        made, journal = Runs(3), Journal()
        made.record_in(journal)
        made.now_ms += 10
        made.store_by(call, 500)
        found.append((journal.runs, made.state()[1:]))
    assert found[0] == found[1] == found[2]
    records, entries = ([each for each in found[0][0] if type(each) is kind] for kind in (bytes, str))
    assert [record[:8] for record in records] == [b"\0\0\0\0" + (len(each) - 8).to_bytes(4) for each in records]
    assert [decode(record[8:]) for record in records] == [
        Appended(name, b"datamore", 3, made.now_ms, UUID(int=(at << 64) + 5), 501)
        for at, name in enumerate(writer.segment for writer, _ in made.runs)
    ]
    assert len(entries) == 3, "index entries are recorded, too"


def test_what_a_journal_does_not_take_is_not_acknowledged() -> None:
    found = []
    for call in BOTH:
        made, journal = Runs(3), Journal(fails_at=1)
        made.record_in(journal)
        with pytest.raises(ZeroDivisionError):
            made.store_by(call, 500)
        assert len(made.acks) == 6 + 2 * 56
        assert [getattr(writer, "last_stored", 0) for writer, _ in made.runs] == [501, 201, 201]
        found.append((journal.runs, made.state()))
    assert found[0] == found[1]


@pytest.mark.needs("CPython's _testcapi", "the codec c")
@looped("recorded", [False, True])
@looped("passed_ms", [0, 10])
def test_memory_that_runs_out_leaves_each_run_stored_or_not(passed_ms: int, recorded: bool) -> None:
    testing = import_module("_testcapi")
    failed = 0
    for allowed in range(40):
        made, journal = Runs(2), Records()
        if recorded:
            made.record_in(journal)
        made.runs[:] = [(writer, [(250, 700, bytes(300), 9)]) for writer, _ in made.runs]  # numbers that are allocated
        made.store_by(never_plain)
        made.now_ms += passed_ms
        made.runs[:] = [(writer, [(1 << 40, 1, b"data", 9)]) for writer, _ in made.runs]
        lengths = [made.segment(at).length for at in range(2)]
        testing.set_nomemory(allowed, allowed + 1)  # one allocation fails
        try:
            made.store_by(store_plain)
        except MemoryError:
            failed += 1
        finally:
            testing.remove_mem_hooks()
        done = [getattr(writer, "last_stored", 0) == 1 << 40 for writer, _ in made.runs]
        assert done != [False, True]
        assert len(made.acks) == 6 + 56 * sum(done)
        assert len(journal.records) == (2 + sum(done)) * recorded
        for at, (writer, _) in enumerate(made.runs):
            segment = made.segment(at)
            assert isinstance(writer, Writer)
            assert segment.length == lengths[at] + 4 * done[at] == segment._starts[-1] + segment._tail_used
            assert segment.attributes[writer.id_bytes] == writer.last_stored
            index = made.container.segments[index_name(segment.name)]
            assert index.length == 24 * bool(index.event_count)
    assert failed > 4
