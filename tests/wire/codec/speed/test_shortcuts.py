"""Functions with an equal in C: whatever they are given, the two agree, and C keeps nothing and never crashes."""

from __future__ import annotations

import asyncio
import copy
import gc
import os
import sys
from array import array
from functools import partial
from importlib import import_module
from struct import Struct
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segstore.client.connection import WRITER_SLOTS, WRITERS, InFlight, Pending, add, take
from segstore.client.connection.acknowledgements import ACK_LAYOUT, ACKNOWLEDGED
from segstore.client.connection.in_flight import Budget
from segstore.client.segment import SegmentWriter
from segstore.client.stream.events import frame_event, frame_header
from segstore.wire.codec import codec
from segstore.wire.trace import TraceWriter
from segstore.wire.trace.framing import marked, numbers
from tests.looped import looped
from tests.wire.codec.speed.pairs import outcome, pairs
from tests.wire.codec.speed.writers import Writers, with_acks, with_turns
from tests.wire.trace.traces import MARK, METADATA, frame, in_memory

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.needs("the extension segstore._speed")

RECORDED = b"".join(code.to_bytes(4, "big") + bytes((0, 0, 0, code)) + bytes(code) for code in range(1, 9)) * 20
RUNS = numbers(5, 2, 1) + numbers(6, 15, 2)
SIZES = array("i", (9, 10, 11)).tobytes()
WRITER = bytes(range(16))
WITHOUT_MEMORY = ("acknowledge", "frames_into", "resolve_stored", "run_turns")
"""Functions that allocate nothing, or small objects that Python keeps for reuse, or let Python try again."""
FILE = os.memfd_create("a file in memory")
ODD: tuple[Any, ...] = (
    *(None, True, -1, 0, 1.5, 1 << 31, 1 << 63, -(1 << 63) - 1, 1 << 128, "", "text", b"", b"data", bytes(16)),
    *(bytearray(b"x"), memoryview(b"12345678")[::2], memoryview(b"1234").cast("I"), (), [], [b"x", None], [b"x", 5]),
    *([bytearray(b"x"), b"y"], [memoryview(b"1234").cast("I")], [1], object(), int, print),
    *([Pending(b"x", 1, None, print), 5], [Pending(None, 1, None, print)], [Pending(b"x", 1, None, 5)]),
    *([Pending(b"x", 1 << 70, None, print)], [Pending("abc", 1, 0, print), Pending(b"x", None, 0, print)]),
    [Pending(memoryview(b"1234").cast("I"), 1, None, print)],
)


def queue(count: int) -> InFlight:
    """A queue with items of 1, 2, … bytes."""
    made = InFlight(8, 1000)
    for size in range(1, count + 1):
        add(made, Pending(bytes(size), 1, size, print))
    return made


def plain() -> dict[str, tuple[Any, ...]]:
    """Arguments that C takes, and which a call may change."""
    return {
        "append": (Writers(1).writers[0], b"data", print, 1, None, False),
        "run_turns": with_turns(Writers(2, batch_bytes=5000)),
        "acknowledge": with_acks(Writers(2, batch_bytes=5000)),
        "add_behind": ({"key": (queue(1), 0.5, None)}, "key", b"event", partial(complex, 5, 1), Budget(999, 999, 9)),
        "resolve_stored": ([Pending(b"x", 1, None, lambda _: None)], print),
        "split_events": (frame_header(3) + b"abc" + frame_header(0) + b"\0", 0, 9, 70, lambda *each: each, "at", []),
        "murmur3_128_low": (b"some bytes, more than sixteen", 5),
        "whole_frames": (RECORDED, 0, 100, marked({9})),
        "frames_into": (bytearray(26 * 5), 5, 1, 100, RUNS, SIZES),
        "add": (in_memory(), 5, 6, 1, memoryview(frame(2, bytes(99)) * 50 + b"\0\0"), True),
        "write_and_sync": (FILE, b"data", 2),
    }


NAMES = sorted(plain())


def joined(found: Any) -> Any:
    return b"".join(found) if isinstance(found, list) and all(isinstance(each, bytes) for each in found) else found


async def test_futures_and_functions_are_told_once_and_what_fails_is_reported() -> None:
    loop = asyncio.get_running_loop()
    for tell in pairs()["resolve_stored"]:
        told: list[Any] = []

        def broken(_: Any) -> None:
            raise ZeroDivisionError

        waiting, cancelled, done, task = (loop.create_future() for _ in range(4))
        cancelled.cancel()
        done.set_result(5)
        items = [Pending(b"", 1, None, it) for it in (waiting, told.append, cancelled, broken, done, task)]
        tell(items, told.append)
        assert (waiting.result(), task.result(), done.result(), cancelled.cancelled()) == (None, None, 5, True)
        first, problem = told
        assert first is None
        assert type(problem) is ZeroDivisionError
        assert problem.__traceback__ is not None


def test_what_is_no_exception_of_an_item_or_is_raised_by_the_report_is_passed_on() -> None:
    def interrupted(_: Any) -> None:
        raise KeyboardInterrupt

    for tell in pairs()["resolve_stored"]:
        with pytest.raises(KeyboardInterrupt):
            tell([Pending(b"", 1, None, interrupted)], print)
        with pytest.raises(ZeroDivisionError):
            tell([Pending(b"", 1, None, lambda _: 1 / 0)], lambda _: 1 / 0)


def test_items_that_change_while_others_are_told_are_seen_as_they_are() -> None:
    for tell in pairs()["resolve_stored"]:
        told: list[Any] = []
        items: list[Any] = []
        later = Pending(b"", 1, None, partial(told.append, 1))

        def change(_: Any, items: list[Any] = items, later: Any = later, told: list[Any] = told) -> None:
            later.done = lambda _: told.append("changed")
            items.append(Pending(b"", 1, None, lambda _: items.clear()))

        items += [Pending(b"", 1, None, change), later]
        tell(items, print)
        assert told == ["changed"]
        assert items == []


KINDS = st.sampled_from((bytes, bytearray, memoryview))
INT64 = st.integers(-(2**63), 2**63 - 1)


@given(st.lists(st.binary(max_size=30)), st.binary(max_size=12), st.integers(0, 30), KINDS, st.data())
def test_events_are_split_alike_wherever_they_are_cut(
    events: list[bytes], behind: bytes, limit: int, kind: Any, data: st.DataObject
) -> None:
    whole = b"".join(map(frame_event, events)) + behind
    whole = kind(whole)[: data.draw(st.integers(0, len(whole)))]
    found = []
    for split in pairs()["split_events"]:
        out: list[Any] = []
        found.append((split(whole, 0, limit, 7, lambda *each: each, "s", out), out))
    assert found[0] == found[1]
    assert all(type(event) is bytes for event, *_ in found[0][1])


def test_an_event_that_is_not_made_ends_the_split() -> None:
    def full(*_: Any) -> None:
        raise ZeroDivisionError

    data = bytearray(frame_event(b"abc"))
    for split in pairs()["split_events"]:
        out: list[Any] = []
        with pytest.raises(ZeroDivisionError):
            split(data, 0, 9, 0, full, None, out)
        assert out == []
        data.append(1)  # a BufferError if it was still viewed


@given(st.binary(max_size=80), st.integers(-(2**63), 2**63 - 1))
def test_hashes_are_the_same(data: bytes, seed: int) -> None:
    in_c, in_python = pairs()["murmur3_128_low"]
    assert in_c(data, seed) == in_python(data, seed)


header = Struct(">ii").pack
frames_of_streams = st.builds(
    lambda code, size, cut: (code.to_bytes(4, "big", signed=True) + size.to_bytes(4, "big", signed=True) + bytes(9))[
        :cut
    ],
    st.sampled_from((1, 9, -5, 251, 265)),
    st.sampled_from((0, 1, 9, 9, 9, -1, 10, 2**31 - 1)),
    st.sampled_from((17, 17, 17, 17, 8, 5)),
)


@given(st.lists(frames_of_streams, max_size=90), st.data())
def test_frames_are_found_up_to_the_same_one(streams: list[bytes], data: st.DataObject) -> None:
    whole = data.draw(KINDS)(b"".join(streams))
    table = marked(data.draw(st.sampled_from(((), (9,), (-5, 700)))))
    found = []
    for call in pairs()["whole_frames"]:
        steps, at = list[Any](), 0
        while at < len(whole):  # as a recorder does: what a call stops at is skipped by a byte
            steps.append(call(whole, at, data_limit(whole), table))
            at = steps[-1][0] + 1
        found.append(steps)
    assert found[0] == found[1]


def data_limit(whole: Any) -> int:
    """The longest frame that is taken, which differs from run to run."""
    return 9 if len(whole) % 2 else 5


def test_the_sizes_of_frames_are_found_however_many_there_are() -> None:
    for call in pairs()["whole_frames"]:
        for count in (1, 20, 400):
            sizes = array("i", range(9, 17)).tobytes() * count
            assert call(RECORDED * count, 0, 100, marked({9})) == (len(RECORDED) * count, sizes * 20, 7 * 20 * count)


def test_frames_are_written_into_their_rows_of_the_columns() -> None:
    for call in pairs()["frames_into"]:
        columns = bytearray(b"\xff" * 26 * 5)
        call(columns, 5, 1, 100, RUNS, SIZES)
        empty = -1
        expected = (empty, 5, 6, 6, empty), (empty, 1, 7, 7, empty), (empty, 109, 119, 130, empty)
        assert Struct("<15q").unpack_from(columns) == tuple(each for column in expected for each in column)
        assert columns[120:] == b"\xff\0\1\1\xff\xff\0\0\0\xff"


def test_runs_in_the_memory_of_the_columns_are_read_before_it_is_written() -> None:
    runs, found = numbers(0, 2, 6) + numbers(0, 2, 1), []
    for call in pairs()["frames_into"]:
        columns = bytearray(26 * 9)
        columns[: len(runs)] = runs
        call(columns, 9, 0, 100, memoryview(columns)[: len(runs)], bytes(4 * 7))
        found.append(columns)
    assert found[0] == found[1]
    assert Struct("<9q").unpack_from(found[0], 72) == (*[1] * 7, 0, 0)


def test_memory_of_other_elements_than_bytes_is_refused() -> None:
    for call in pairs()["frames_into"]:
        arguments = memoryview(bytearray(26 * 8)).cast("b"), *plain()["frames_into"][1:]
        assert outcome(call, *arguments)[0] is ValueError


@given(st.integers(0, 200), st.sampled_from((8, 9, 71, 72, 200, 4095, 4096, 5000, 40_000)), KINDS)
def test_frames_are_copied_to_any_place(at: int, size: int, kind: Callable[[bytes], Any]) -> None:
    first, second = frame(1, bytes(at)), frame(2, bytes(each % 251 for each in range(size - 8)))
    for call in pairs()["add"]:
        memory = bytearray(b"\xff" * (len(first) + size + 70))
        writer = TraceWriter(MARK, METADATA, memory=memory)
        for data in (first, second):
            call(writer, 5, 6, 1, kind(data))
        assert memory == first + second + b"\xff" * 70


@looped("name", NAMES)
def test_anything_odd_has_the_outcome_that_it_has_in_python(name: str) -> None:
    in_c, in_python = pairs()[name]
    for at in range(len(plain()[name])):
        for odd in range(len(ODD)):
            found = []
            for call in (in_c, in_python):
                arguments = list(plain()[name])
                arguments[at] = copied(ODD[odd])
                result = outcome(call, *arguments)
                found.append((repr(joined(result)).partition(" at 0x")[0], shape(arguments)))
            assert found[0] == found[1], (at, ODD[odd])
    for arguments in ((), plain()[name] * 2):
        with pytest.raises(TypeError):
            in_c(*arguments)


def copied(odd: Any) -> Any:
    if isinstance(odd, SegmentWriter):
        return Writers(1).writers[0]
    if isinstance(odd, (InFlight, dict, Budget)) and 0 not in (odd if isinstance(odd, dict) else ()):  # not a store's
        return copy.deepcopy(odd)
    return type(odd)(odd) if isinstance(odd, list) else odd


def shape(arguments: list[Any]) -> list[Any]:
    """What a call may have changed."""
    return [
        len(each) if isinstance(each, list) else state(each) if isinstance(each, InFlight) else None
        for each in arguments
    ]


def state(queue: InFlight) -> dict[str, Any]:
    """All attributes of a queue."""
    found = {name: getattr(queue, name) for name in InFlight.__slots__}
    return found | {"one list": queue.newest is queue.queued}


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 9)), max_size=40))
def test_a_queue_in_c_and_in_python_is_the_same_after_each_event(steps: list[tuple[bool, int]]) -> None:
    known = pairs()["add_behind"]
    ours, theirs = InFlight(3, 60), InFlight(3, 60)
    budgets = Budget(1000, 1000, 8), Budget(1000, 1000, 8)
    for is_behind, number in steps:
        found = []
        for call, each, budget in zip(known, (ours, theirs), budgets, strict=True):
            if is_behind:
                found.append(call({"key": (each, 0.5, None)}, "key", bytes(number), int, budget))
            else:
                add(each, Pending(bytes(number), number, None, print))
                take(each, 3, 9)
        assert found[:1] == found[1:]
        assert state(ours) == state(theirs)
        assert budgets[0] == budgets[1]


def test_an_event_behind_others_is_queued_unless_there_is_anything_else_to_decide() -> None:
    for call in pairs()["add_behind"]:
        budget = Budget(1000, 1000, 99)
        for routed in (queue(0), queue(1024), queue(16_384)):
            assert call({"key": (routed, 0.5, None)}, "key", b"event", object, budget) is None
        routed = queue(2)
        routes = {"key": (routed, 0.5, None)}
        assert call(routes, "other", b"event", object, budget) is None
        assert call(routes, None, b"event", object, budget) is None
        assert call(routes, "key", bytearray(b"event"), object, budget) is None
        assert call(routes, "key", bytes(100), object, budget) is None, "it is too large"
        assert (routed.added_bytes, budget.left) == (19, 1000)
        done = call(routes, "key", b"event", object, budget)
        assert type(done) is object
        assert routed.queued[-1] == Pending(b"event", 1, 0.5, done)
        assert (routed.added_bytes, routed.held_bytes, budget.left) == (32, 32, 936)
        budget.left = 64
        assert call(routes, "key", b"event", object, budget) is None, "the budget is spent"
        budget.left = budget.largest = 10_000
        assert call(routes, "key", bytes(1000 - 32 - 8), object, budget) is None, "the writer is full"
        assert call(routes, "key", bytes(1000 - 32 - 9), object, budget) is not None


def test_a_queue_that_a_new_future_empties_takes_no_event_behind_others() -> None:
    for call in pairs()["add_behind"]:
        routed = queue(2)
        assert call({"key": (routed, 0.5, None)}, "key", b"event", routed.take_all, Budget(1000, 1000, 100)) is None
        assert (routed.unsettled, routed.queued) == (0, [])


@looped("name", [each for each in NAMES if each != "write_and_sync"])  # other threads run in that one
@pytest.mark.needs("CPython's _testcapi")
def test_memory_that_runs_out_is_a_memory_error_and_takes_nothing(name: str) -> None:
    testing = import_module("_testcapi")
    call, _ = pairs()[name]
    failed = 0
    for allowed in range(30):
        arguments = plain()[name]
        before = shape(list(arguments))
        testing.set_nomemory(allowed, allowed + 1)  # one allocation fails
        try:
            found = call(*arguments)
        except MemoryError:
            failed += 1
            if name == "append":
                testing.remove_mem_hooks()
                assert shape(list(arguments)) == before
            continue
        finally:
            testing.remove_mem_hooks()
        if name != "split_events":
            assert joined(found) == joined(call(*plain()[name]))
    assert failed or name in WITHOUT_MEMORY


@looped("name", NAMES)
def test_no_reference_is_kept(name: str) -> None:
    call, _ = pairs()[name]
    arguments = plain()[name]
    inside = [each for some in arguments if isinstance(some, list) for each in some]
    watched = [each for each in (*arguments, *inside) if sys.getrefcount(each) < 500]
    before = [sys.getrefcount(each) for each in watched]
    for _ in range(50):
        given = [copied(each) for each in arguments]
        call(*given)
        del given
    gc.collect()
    assert [sys.getrefcount(each) for each in watched] == before


def test_a_shortcut_is_collected_with_its_function() -> None:
    def murmur3_128_low() -> None: ...

    murmur3_128_low.shortcut = codec.SPEED.shortcut(murmur3_128_low)  # type: ignore[attr-defined, union-attr]
    before = sum(type(each).__name__ == "Shortcut" for each in gc.get_objects())
    del murmur3_128_low
    gc.collect()
    assert sum(type(each).__name__ == "Shortcut" for each in gc.get_objects()) == before - 1


class Sizeless:
    """Objects that have neither attributes nor a size."""

    __slots__ = ()


def test_misuse_of_shortcuts_raises() -> None:
    speed = codec.SPEED
    make = partial(speed._speed.Shortcut, speed._codec)  # type: ignore[union-attr]
    slots = (*WRITERS,), (*WRITER_SLOTS,)
    appended = partial(make, "run_turns", print, *slots)
    behind = partial(make, "resolve_stored", print)
    appended(bytes(24), bytes(56), (8, 8, 24, 32, 36, 40, 48))
    settled = partial(make, "acknowledge", print, ACKNOWLEDGED, ACK_LAYOUT["slots"], b"")
    settled(bytes(56), (8, 24, 32, 40, 48))
    misused: list[Callable[[], Any]] = [
        make,
        partial(make, "print", print, (), (), b"", b"", ()),
        partial(make, "split_events", 5, (), (), bytes(8), b"", ()),
        partial(make, "split_events", print, (), (), bytes(7), b"", ()),
        partial(make, "split_events", print, (), (), bytes(257), b"", ()),
        partial(make, "split_events", print, (int,), (), bytes(8), b"", ()),
        partial(appended, bytes(24), bytes(56), (8, 8, 24, 32, 36)),
        partial(appended, bytes(24), bytes(7), (8, 8, 24, 32, 36, 40, 48)),
        partial(appended, bytes(24), bytes(257), (8, 8, 24, 32, 36, 40, 48)),
        partial(appended, bytes(24), bytes(56), (9, 8, 24, 32, 36, 40, 48)),
        partial(appended, bytes(24), bytes(56), (8, 7, 24, 32, 36, 40, 48)),
        partial(appended, bytes(24), bytes(56), (8, 8, 24, 53, 36, 40, 48)),
        partial(appended, bytes(24), bytes(56), (8, 8, 24, 32, 36, 49, 48)),
        partial(appended, bytes(24), bytes(56), (8, 8, 24, 32, 36, 40, 49)),
        partial(appended, bytes(24), bytes(56), (8, 8, 24, 32, 36, 40, 1 << 70)),
        partial(appended, bytes(24), bytes(56), (8, 8, 24, 32, 36, 40, "48")),
        *(partial(settled, bytes(size), (8, 24, 32, 40, 48)) for size in (0, 7, 55, 257)),
        *(partial(settled, bytes(56), at) for at in ((7, 24, 32, 40, 48), (41, 24, 32, 40, 48), (8, 24, 32, 40, 49))),
        *(partial(settled, bytes(56), (8, 24, 32, 40, 48)[:4] + more) for more in ((), (48, 48))),
        partial(behind, (Pending, Pending, Pending), (), b"", b"", ()),
        partial(behind, (5, Pending, Pending), ("done",), b"", b"", ()),
        partial(behind, (Pending, Pending), ("done",), b"", b"", ()),
        partial(behind, (Pending, Pending, Sizeless), ("done",), b"", b"", ()),
        partial(behind, (Pending, Pending, Pending), ("missing",), b"", b"", ()),
        partial(behind, (Pending, Pending, Pending), (5,), b"", b"", ()),
        partial(behind, (int, int, int), ("real",), b"", b"", ()),
    ]
    for call in misused:
        with pytest.raises((TypeError, ValueError, OverflowError, AttributeError)):
            call()
