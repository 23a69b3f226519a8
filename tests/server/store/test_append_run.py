"""Appends stored as a run leave what the same appends leave one by one."""

from collections.abc import Sequence
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segstore.server.store import Appended, BadAttribute, Container, NoSuchSegment, Operation, SegmentSealed
from segstore.server.store.chunks import SegmentData
from segstore.wire.blocks import Append

NAME = "scope/stream/0.#epoch.0"
WRITER = UUID(int=7)

appends = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 5), st.binary(max_size=40)), min_size=1, max_size=12)


def run_of(steps: list[tuple[int, int, bytes]]) -> list[Append]:
    run, number = [], 0
    for step, count, data in steps:
        number += step
        run.append(Append(NAME, WRITER, number, count, data, None, 1))
    return run


class Journal:
    """One that is told of appends as such."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []

    def __call__(self, operation: Operation) -> None:
        self.operations.append(operation)

    def appended(
        self, segment: str, parts: Sequence[bytes], events: int, now_ms: int, writer_id: UUID, event_number: int
    ) -> None:
        self.operations.append(Appended(segment, b"".join(parts), events, now_ms, writer_id, event_number))


def container(journal: list[Operation] | Journal | None = None) -> Container:
    made = Container(journal=journal.append if isinstance(journal, list) else journal)
    made.create_segment(NAME, now_ms=1)
    made.setup_append(NAME, WRITER, now_ms=1)
    return made


def state(of: Container) -> tuple[object, ...]:
    segment = of.segment(NAME)
    data = b"".join(segment.read(0, segment.length))
    return data, segment.event_count, segment.last_modified_ms, dict(segment.attributes), segment.gate


@given(appends, st.booleans())
def test_a_run_is_its_appends_one_by_one(steps: list[tuple[int, int, bytes]], journalled: bool) -> None:
    run = run_of(steps)
    journal: list[Operation] | None = [] if journalled else None
    together, alone = container(journal), container()
    lengths = together.append_run(NAME, WRITER, run, last_event_number=-(1 << 63), now_ms=5)
    last, expected = -(1 << 63), []
    for each in run:
        expected.append(
            alone.append(NAME, WRITER, each.event_number, each.event_count, each.data, last_event_number=last, now_ms=5)
        )
        last = each.event_number
    assert lengths == expected
    assert state(together) == state(alone)
    if journal is not None:
        again = Container()
        for operation in journal:
            again.apply(operation)
        assert state(again) == state(together)


@given(appends, st.booleans())
def test_a_run_is_one_entry_of_a_journal_of_appends(steps: list[tuple[int, int, bytes]], watched: bool) -> None:
    run, journal = run_of(steps), Journal()
    written = container(journal)
    before = len(journal.operations)
    if watched:  # readers are woken by one append after the other
        written.wait(NAME, 1 << 20, "reader")
    written.append_run(NAME, WRITER, run, last_event_number=-(1 << 63), now_ms=5)
    assert len(journal.operations) - before == (len(run) if watched else 1)
    again = Container()
    for operation in journal.operations:
        again.apply(operation)
    written.waiters.cancel("reader")
    assert state(again)[:-1] == state(written)[:-1]


def test_memory_that_ends_within_a_run_leaves_what_was_written_in_the_journal(monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal()
    written = container(journal)
    written.append(NAME, WRITER, 1, 1, b"ab", last_event_number=-(1 << 63), now_ms=2)
    monkeypatch.setattr(SegmentData, "_write_across", _no_memory)
    run = [Append(NAME, WRITER, number, 1, data, None, 1) for number, data in ((2, b"cd"), (3, b"x" * 300))]
    with pytest.raises(MemoryError):
        written.append_run(NAME, WRITER, run, last_event_number=1, now_ms=3)
    monkeypatch.undo()
    again = Container()
    for operation in journal.operations:
        again.apply(operation)
    assert state(again) == state(written)
    assert state(written)[0] == b"abcd"


def _no_memory(*_: object) -> None:
    raise MemoryError("no more")


def test_a_run_wakes_the_readers_that_wait_for_it() -> None:
    store = container()
    store.wait(NAME, 3, "reader")
    store.append_run(NAME, WRITER, run_of([(1, 1, b"ab"), (1, 1, b"cd")]), last_event_number=-(1 << 63), now_ms=2)
    assert [woken.token for woken in store.waiters.take_woken()] == ["reader"]


def test_a_refused_run_writes_nothing() -> None:
    store = container()
    run = run_of([(1, 1, b"ab"), (1, 1, b"cd")])
    before = state(store)
    with pytest.raises(BadAttribute):
        store.append_run(NAME, WRITER, run, last_event_number=3, now_ms=2)
    with pytest.raises(NoSuchSegment):
        store.append_run("other", WRITER, run, last_event_number=-(1 << 63), now_ms=2)
    assert state(store) == before
    store.seal_segment(NAME, now_ms=2)
    sealed = state(store)
    with pytest.raises(SegmentSealed):
        store.append_run(NAME, WRITER, run, last_event_number=-(1 << 63), now_ms=3)
    assert state(store) == sealed
