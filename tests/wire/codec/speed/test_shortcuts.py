"""Functions with an equal in C: whatever they are given, the two agree, and C keeps nothing and never crashes."""

from __future__ import annotations

import gc
import sys
from array import array
from importlib import import_module
from struct import Struct
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segstore.wire.blocks import frame_header, split_events
from segstore.wire.codec import codec
from segstore.wire.hashing import murmur3_128_low
from segstore.wire.trace.framing import frames_into, marked, numbers, whole_frames
from tests.looped import looped

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.needs("the extension segstore._speed")

RECORDED = b"".join(code.to_bytes(4, "big") + bytes((0, 0, 0, code)) + bytes(code) for code in range(1, 9)) * 20
RUNS = numbers(5, 2, 1) + numbers(6, 15, 2)
SIZES = array("i", (9, 10, 11)).tobytes()
ODD: tuple[Any, ...] = (
    *(None, True, -1, 0, 1.5, 1 << 31, 1 << 63, -(1 << 63) - 1, 1 << 128, "", "text", b"", b"data", bytes(16)),
    *(bytearray(b"x"), memoryview(b"12345678")[::2], memoryview(b"1234").cast("I"), (), [], [b"x", None], [b"x", 5]),
    *([bytearray(b"x"), b"y"], [memoryview(b"1234").cast("I")], [1], object(), int, print),
)
FUNCTIONS: tuple[Any, ...] = (split_events, murmur3_128_low, whole_frames, frames_into)


def pairs() -> dict[str, tuple[Callable[..., Any], Callable[..., Any]]]:
    """Each function, in C and in Python."""
    behind = {function.__name__: getattr(function, "__wrapped__", function) for function in FUNCTIONS}
    return {name: (codec.SPEED.shortcut(each), each) for name, each in behind.items()}


def outcome(call: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return call(*arguments)
    except Exception as error:  # noqa: BLE001 — of whatever kind, it is to be the same
        return type(error), str(error)


def framed_event(event: bytes) -> bytes:
    return frame_header(len(event)) + event


def plain() -> dict[str, tuple[Any, ...]]:
    """Arguments that C takes, and which a call may change."""
    return {
        "split_events": (frame_header(3) + b"abc" + frame_header(0) + b"\0", 0, 9, 70, lambda *each: each, "at", []),
        "murmur3_128_low": (b"some bytes, more than sixteen", 5),
        "whole_frames": (RECORDED, 0, 100, marked({9})),
        "frames_into": (bytearray(26 * 5), 5, 1, 100, RUNS, SIZES),
    }


NAMES = sorted(plain())


KINDS = st.sampled_from((bytes, bytearray, memoryview))
INT64 = st.integers(-(2**63), 2**63 - 1)


@given(st.lists(st.binary(max_size=30)), st.binary(max_size=12), st.integers(0, 30), KINDS, st.data())
def test_events_are_split_alike_wherever_they_are_cut(
    events: list[bytes], behind: bytes, limit: int, kind: Any, data: st.DataObject
) -> None:
    whole = b"".join(map(framed_event, events)) + behind
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

    data = bytearray(framed_event(b"abc"))
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
                found.append((repr(result).partition(" at 0x")[0], shape(arguments)))
            assert found[0] == found[1], (at, ODD[odd])
    for arguments in ((), plain()[name] * 2):
        with pytest.raises(TypeError):
            in_c(*arguments)


def copied(odd: Any) -> Any:
    return type(odd)(odd) if isinstance(odd, list) else odd


def shape(arguments: list[Any]) -> list[Any]:
    """What a call may have changed."""
    return [len(argument) if isinstance(argument, list) else None for argument in arguments]


@looped("name", NAMES)
@pytest.mark.needs("CPython's _testcapi")
def test_memory_that_runs_out_is_a_memory_error_and_takes_nothing(name: str) -> None:
    testing = import_module("_testcapi")
    call, _ = pairs()[name]
    failed = 0
    for allowed in range(30):
        arguments = plain()[name]
        testing.set_nomemory(allowed, allowed + 1)  # one allocation fails
        try:
            found = call(*arguments)
        except MemoryError:
            failed += 1
            continue
        finally:
            testing.remove_mem_hooks()
        if name != "split_events":
            assert found == call(*plain()[name])
    assert failed or name == "frames_into", "it allocates nothing"


@looped("name", NAMES)
def test_no_reference_is_kept(name: str) -> None:
    call, _ = pairs()[name]
    arguments = plain()[name]
    inside = [each for some in arguments if isinstance(some, list) for each in some]
    watched = [each for each in (*arguments, *inside) if sys.getrefcount(each) < 500]
    before = [sys.getrefcount(each) for each in watched]
    for _ in range(50):
        given = [copied(argument) for argument in arguments]
        call(*given)
        del given
    gc.collect()
    assert [sys.getrefcount(each) for each in watched] == before
