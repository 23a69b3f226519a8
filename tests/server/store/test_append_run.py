"""Appends stored as a run leave what the same appends leave one by one."""

from itertools import accumulate
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segstore.server.store import AppendItem, BadAttribute, Container, NoSuchSegment, Operation, SegmentSealed
from tests.server.store.journal import Journal

NAME = "scope/stream/0.#epoch.0"
WRITER = UUID(int=7)

appends = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 5), st.binary(max_size=40)), min_size=1, max_size=12)


def run_of(steps: list[tuple[int, int, bytes]]) -> list[AppendItem]:
    numbers = accumulate(step for step, _, _ in steps)
    return [(number, events, data, 0) for number, (_, events, data) in zip(numbers, steps, strict=True)]


def container(journal: list[Operation] | None = None) -> Container:
    made = Container(journal=None if journal is None else Journal(journal.append))
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
    assert together.append(NAME, WRITER.bytes, run, -(1 << 63), 5) == 0
    last, length = -(1 << 63), 0
    for row in run:
        assert alone.append(NAME, WRITER.bytes, (row,), last, 5) == length
        last, length = row[0], length + len(row[2])
    assert state(together) == state(alone)
    if journal is not None:
        again = Container()
        for operation in journal:
            again.apply(operation)
        assert state(again) == state(together)


@given(appends, st.booleans())
def test_a_run_is_one_entry_of_a_journal_of_appends(steps: list[tuple[int, int, bytes]], watched: bool) -> None:
    run = run_of(steps)
    journal: list[Operation] = []
    written = container(journal)
    before = len(journal)
    if watched:  # readers are woken by one append after the other
        written.wait(NAME, 1 << 20, "reader")
    written.append(NAME, WRITER.bytes, run, -(1 << 63), 5)
    assert len(journal) - before == (len(steps) if watched else 1)
    again = Container()
    for operation in journal:
        again.apply(operation)
    written.waiters.cancel("reader")
    assert state(again)[:-1] == state(written)[:-1]


def test_a_run_wakes_the_readers_that_wait_for_it() -> None:
    store = container()
    store.wait(NAME, 3, "reader")
    store.append(NAME, WRITER.bytes, run_of([(1, 1, b"ab"), (1, 1, b"cd")]), -(1 << 63), 2)
    assert [token for token, _ in store.waiters.take_woken()] == ["reader"]


def test_a_refused_run_writes_nothing() -> None:
    store = container()
    run = run_of([(1, 1, b"ab"), (1, 1, b"cd")])
    before = state(store)
    with pytest.raises(BadAttribute):
        store.append(NAME, WRITER.bytes, run, 3, 2)
    with pytest.raises(NoSuchSegment):
        store.append("other", WRITER.bytes, run, -(1 << 63), 2)
    assert state(store) == before
    store.seal_segment(NAME, now_ms=2)
    sealed = state(store)
    with pytest.raises(SegmentSealed):
        store.append(NAME, WRITER.bytes, run, -(1 << 63), 3)
    assert state(store) == sealed
