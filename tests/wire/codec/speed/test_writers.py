"""A writer's events: in C and in Python the same becomes of them, whatever happens meanwhile."""

from __future__ import annotations

import asyncio
import gc
import sys
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segstore.client.connection import InFlight
from segstore.client.connection.outbox import run_turns
from segstore.wire import AppendBlock, AppendBlockEnd, FrameDecoder
from segstore.wire.codec.generate import FrameRows
from tests.looped import looped
from tests.wire.codec.speed.pairs import Pair, outcome, pairs
from tests.wire.codec.speed.writers import SIZES_OF_TURNS, TIMER, Writers, with_turns
from tests.wire.rows import rows_of

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.needs("the extension segstore._speed")

KINDS = st.sampled_from((bytes, bytearray, memoryview))
WRONG = ("number", "previous", "writer", "flow", "short", "odd")
SIZES_OF_EVENTS = st.sampled_from((0, 1, 1, 2, 3, 9, 30, 59, 60, 61, 4095, 4096, 5000, 5001))
STEPS = st.one_of(
    st.tuples(st.just("append"), SIZES_OF_EVENTS, st.integers(1, 3), st.booleans(), KINDS),
    st.tuples(st.just("append"), st.integers(0, 9), st.just(1), st.just(False), st.just(bytes)),
    st.tuples(st.just("again"), st.integers(0, 9)),
    st.tuples(st.just("turns")),
    st.tuples(st.just("turns")),
    st.tuples(st.just("ack"), st.sampled_from(("", "", "", "", *WRONG))),
    st.tuples(st.just("plain"), st.booleans()),
    st.tuples(st.just("await")),
    st.tuples(st.just("timer"), st.booleans()),
    st.tuples(st.just("close")),
)


@given(st.lists(st.tuples(st.integers(0, 2), STEPS), max_size=60))
def test_writers_in_c_and_in_python_are_the_same_after_each_step(steps: list[tuple[int, Any]]) -> None:
    known = pairs()
    both = Writers(3), Writers(3)
    for number, (which, step) in enumerate(steps):
        found = [outcome(take_step, known, at, made, which, step, number) for at, made in enumerate(both)]
        assert found[0] == found[1]
        assert both[0].state() == both[1].state()


def take_step(known: dict[str, Pair], at: int, made: Writers, which: int, step: Any, number: int) -> Any:
    """Does a step with a writer. at: 0 in C, 1 in Python."""
    writer, append = made.writers[which], known["append"][at]
    match step:
        case "append", size, events, now, kind:
            return append(writer, kind(bytes(size)), made.callback(number), events, size, now)
        case "again", size:
            again = partial(append, writer, bytes(size), made.callback(0))
            return append(writer, bytes(size), made.callback(number, again))
        case ("turns",):
            return made.run(known["run_turns"][at])
        case "ack", wrong:
            acks = [made.ack(1 + which, wrong), made.ack(1 + (which + 1) % 3)]
            return known["acknowledge"][at](rows_of(acks), made.flows, made.counters)
        case "plain", is_plain:
            made.plain(which, is_plain)
        case ("await",):
            made.wait(which)
        case "timer", is_armed:
            writer._appends.timer = TIMER if is_armed else None  # type: ignore[union-attr, assignment]
        case ("close",):
            made.flows[1 + which].closed = True
    return None


async def test_futures_of_acknowledged_events_are_done_and_cancelled_ones_are_left() -> None:
    for append, run, settle in zip(*(pairs()[name] for name in ("append", "run_turns", "acknowledge")), strict=True):
        made = Writers(1)
        futures = [asyncio.get_running_loop().create_future() for _ in range(3)]
        for each in futures:
            append(made.writers[0], b"x", each)
        futures[1].cancel()
        made.run(run)
        assert settle(rows_of([made.ack(1)]), made.flows, made.counters) is None
        assert [each.cancelled() or each.result() for each in futures] == [None, True, None]


def test_large_events_are_written_as_they_are_and_small_ones_are_joined() -> None:
    made = Writers(2, most_bytes=20_000, batch_bytes=15_000)
    events = [b"a", bytes(4095), bytes(4096), bytes(5000), b"b"]
    for writer in made.writers:
        writer._appends.timer = TIMER  # type: ignore[union-attr]
        for event in events:
            pairs()["append"][0](writer, event, print)
    made.run(pairs()["run_turns"][0])
    parts = made.outbox._out
    same = [any(part is each for each in events) for part in parts]
    assert same == [False, True, False, True, False, True, True, False], "the second writer frames no events"
    assert [type(each) for each in FrameDecoder().feed(b"".join(parts))] == [AppendBlock, AppendBlockEnd] * 2


@pytest.mark.needs("CPython's _testcapi")
def test_when_memory_runs_out_each_event_is_still_queued_or_sent_or_acknowledged() -> None:
    run, settle = (pairs()[name][0] for name in ("run_turns", "acknowledge"))
    gc.collect()
    gc.disable()  # a collection without memory would warn
    try:
        for allowed in range(80):
            made = Writers(2, most_bytes=9000, batch_bytes=5000)
            with_turns(made)
            with_little_memory(allowed, made.run, run)
            events = [item.data for each in made.writers for sent in each._events.sent for item in sent.items]
            events += [item.data for each in made.writers for item in each._events.queued]
            assert sorted(events) == sorted([bytes(size) for size in SIZES_OF_TURNS] * 2)
            frames = FrameDecoder().feed(b"".join(made.outbox._out))
            appends = [sent.items for each in made.writers for sent in each._events.sent]
            assert [type(each) for each in frames] == [AppendBlock, AppendBlockEnd] * len(appends)
            acks = rows_of([made.ack(number) for number in made.flows])
            if with_little_memory(allowed, settle, acks, made.flows, made.counters) is MemoryError:
                continue
            notes = [each for each in made.notes if each == str(MemoryError()) or each[1] is None]
            assert len(notes) + sum(each.unsettled for each in made.writers) == 2 * len(SIZES_OF_TURNS)
    finally:
        gc.enable()


def with_little_memory(allowed: int, call: Callable[..., Any], *arguments: Any) -> Any:
    """Calls a function, of whose allocations one fails; returns MemoryError if it raises that."""
    testing = import_module("_testcapi")
    testing.set_nomemory(allowed, allowed + 1)
    try:
        return call(*arguments)
    except MemoryError:
        return MemoryError
    finally:
        testing.remove_mem_hooks()


def test_writers_keep_no_memory_of_what_is_settled() -> None:
    append, run, settle = (pairs()[name][0] for name in ("append", "run_turns", "acknowledge"))
    made = Writers(3)

    def repeat(times: int) -> None:
        for _ in range(times):
            for writer in made.writers:
                for number in (0, 1, 8):
                    append(writer, bytes(31), made.callback(number), 1, None, number == 1)
            while any(each._events.queued or each._events.oldest for each in made.writers):
                made.run(run)
                settle(rows_of([*map(made.ack, made.flows), made.ack(1, "flow")]), made.flows, made.counters)
            made.notes.clear()
            made.outbox._out.clear()

    repeat(50)
    gc.collect()
    before = sys.getallocatedblocks()
    repeat(1000)
    gc.collect()
    assert sys.getallocatedblocks() - before < 1000


class Finalized:
    """Garbage: a cycle whose finalizer calls a function."""

    def __init__(self, call: Callable[[], object]) -> None:
        self.call = call
        self.itself = self

    def __del__(self) -> None:
        self.call()


@looped("closed", [0, 1])
def test_a_finalizer_may_close_a_writer_while_c_works_with_it(closed: int) -> None:
    gc.collect()
    gc.freeze()  # collections are quick then
    try:
        assert sum(close_meanwhile(closed, collects_after) for collects_after in range(60))
    finally:
        gc.unfreeze()


def close_meanwhile(closed: int, collects_after: int) -> bool:
    """Runs turns and acknowledges while a finalizer may close a writer; returns whether one did."""
    append, run, settle = (pairs()[name][0] for name in ("append", "run_turns", "acknowledge"))
    made = Writers(2, most_bytes=1000)
    for writer in made.writers:
        writer._appends.timer = TIMER  # type: ignore[union-attr]
        append(writer, b"first", made.callback(1))
    made.run(run)
    for writer in made.writers * 8:
        append(writer, bytes(50), made.callback(2))
    Finalized(partial(made.close, closed))
    threshold = gc.get_threshold()
    try:
        gc.set_threshold(gc.get_count()[0] + collects_after, 10, 10)
        made.run(run)
        settle(rows_of([made.ack(1), made.ack(2)]), made.flows, made.counters)
    finally:
        gc.set_threshold(*threshold)
    in_flight = [sum(sent.size for sent in each._events.sent) for each in made.writers]
    assert [each.bytes_in_flight for each in made.flows.values()] == in_flight
    assert made.outbox.bytes_in_flight == sum(in_flight)
    return made.flows[1 + closed].closed


class Rows2(FrameRows):
    """Rows that C does not know."""


def sent(count: int, callback: Callable[[Writers], Callable[[], object]] | None = None) -> Writers:
    """Writers that have each sent an append. callback: makes what is called when it is stored."""
    made = Writers(count)
    for writer in made.writers:
        writer._appends.timer = TIMER  # type: ignore[union-attr, assignment]
        writer.append(bytes(20), made.callback(1, None if callback is None else callback(made)))
    made.run(run_turns)
    return made


@looped(
    "kind",
    [
        *(bytes, bytearray, memoryview, lambda data: memoryview(data + data)[::2], lambda data: data[:-1]),
        *(lambda data: memoryview(data).cast("q"), lambda data: memoryview(data).cast("B", (2, 56))),
        *(
            lambda _: b"",
            lambda _: None,
            lambda _: 5,
            lambda _: "text",
            lambda data: b"odd code" + data[8:],
            lambda data: data[:56] + b"!" * 56,
        ),
    ],
)
@looped("rows", [FrameRows, Rows2])
def test_rows_of_any_kind_have_the_outcome_that_they_have_in_python(kind: Any, rows: type[FrameRows]) -> None:
    found = []
    for settle in pairs()["acknowledge"]:
        made = sent(2)
        acks = rows(kind(made.ack(1) + made.ack(2)), rows_of(()).unpack)
        found.append((outcome(settle, acks, made.flows, made.counters), made.state()))
    assert found[0] == found[1]


@looped("name", ["frames", "unpack"])
def test_rows_that_lack_something_have_the_outcome_that_they_have_in_python(name: str) -> None:
    found = []
    for settle in pairs()["acknowledge"]:
        made = sent(2)
        acks = rows_of((made.ack(1), made.ack(2)))
        delattr(acks, name)
        found.append((outcome(settle, acks, made.flows, made.counters), made.state()))
    assert found[0] == found[1]
    assert found[0][0][0] is AttributeError


@looped("how", ["release", "resize", "replace"])
def test_frames_stay_whatever_a_callback_does_with_them(how: str) -> None:
    def change() -> None:
        if how == "release":
            acks.frames.release()
        elif how == "resize":
            acks.frames.clear()  # type: ignore[attr-defined]
        else:
            acks.frames = acks.unpack = None  # type: ignore[misc, assignment]

    found = []
    for settle in pairs()["acknowledge"]:
        made = sent(3, lambda _: change)
        acks = rows_of(map(made.ack, made.flows), bytearray if how == "resize" else memoryview)
        found.append((outcome(settle, acks, made.flows, made.counters), made.state()))
    assert found[0] == found[1]
    assert made.outbox.bytes_in_flight == 0


class Last:
    """Calls something when it is dropped."""

    def __init__(self, call: Callable[[], object]) -> None:
        self._call = call

    def __del__(self) -> None:
        self._call()


@looped("where", ["last_stored", "bytes_in_flight", "asked", "left_bytes"])
def test_an_odd_number_that_ends_the_queue_when_it_is_dropped_does_no_harm(where: str) -> None:
    append, run, settle = (pairs()[name][0] for name in ("append", "run_turns", "acknowledge"))
    made = sent(1)
    writer, flow = made.writers[0], made.flows[1]

    def end() -> None:
        ends.append(where)
        writer._events = writer._appends.queue = InFlight(8, 200)  # type: ignore[union-attr, misc]
        made.outbox.most_bytes = 1 << 40

    ends: list[str] = []
    owner: Any = {"last_stored": writer._events, "left_bytes": made.outbox}.get(where, flow)
    setattr(owner, where, Last(end))
    acks = rows_of((made.ack(1),))
    for _ in range(2):
        outcome(append, writer, b"x", made.callback(2))
        outcome(made.run, run)
        outcome(settle, acks, made.flows, made.counters)
    del owner
    flow.asked = False
    flow.bytes_in_flight = 0
    made.outbox.left_bytes = 0
    assert ends == [where]


@looped("most_bytes", [-1, 0, 100])
@looped("is_queued", [False, True])
@looped("is_closed", [False, True])
@looped("is_plain", [False, True])
def test_a_turn_without_bytes_left_is_the_same(
    most_bytes: int, is_queued: bool, is_closed: bool, is_plain: bool
) -> None:
    found = []
    for run in pairs()["run_turns"]:
        made = Writers(1)
        made.outbox.most_bytes = most_bytes
        if is_queued:
            made.writers[0].append(b"x", made.callback(1))
        made.plain(0, is_plain)
        made.flows[1].closed, made.flows[1].asked, made.outbox.turns = is_closed, True, [made.flows[1]]
        found.append((outcome(made.run, run), made.state()))
    assert found[0] == found[1]


def test_what_ends_the_process_leaves_an_acknowledgement() -> None:
    def interrupted(_: Any) -> None:
        raise KeyboardInterrupt

    for append, run, settle in zip(*(pairs()[name] for name in ("append", "run_turns", "acknowledge")), strict=True):
        made = Writers(1)
        append(made.writers[0], b"x", interrupted)
        made.run(run)
        with pytest.raises(KeyboardInterrupt):
            settle(rows_of([made.ack(1)]), made.flows, made.counters)
