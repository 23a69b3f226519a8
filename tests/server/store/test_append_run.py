"""Appends stored as a run leave what the same appends leave one by one."""

from itertools import accumulate
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from segstore.server.store import Container, Operation
from segstore.wire.blocks import Row
from tests.server.store.journal import Journal

NAME = "scope/stream/0.#epoch.0"
WRITER = UUID(int=7)

appends = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 5), st.binary(max_size=40)), min_size=1, max_size=12)


def run_of(steps: list[tuple[int, int, bytes]]) -> list[Row]:
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
