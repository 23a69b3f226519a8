"""The columns that C fills from records: no misuse crashes, no memory is kept, and running out of it is an error.

That they hold what Python's rows hold is tested in `tests/pipeline/trace/test_batches.py`.
"""

from __future__ import annotations

import struct
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

from segstore.wire import ConditionalAppend, DataAppended, Event, Hello, KeepAlive, NoSuchSegment, SetupAppend, encode
from segstore.wire.codec import codec
from segstore.wire.codec.speed.backend import step_of
from segstore.wire.trace import Direction, Record, RecordKind
from tests.looped import looped
from tests.wire.codec.speed.columns import columns_of, values_in
from tests.wire.codec.speed.memory import FAILED, check_nothing_is_kept, without_one_allocation

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.needs("the extension segstore._speed")

WRITER = UUID(int=7)
KINDS = ("frame", "event", "bytes")
COLUMNS = (
    ("int64", "ts_ns", ()),
    ("int32", "record", ()),
    ("int32", "code", ()),
    ("text", "kind", KINDS),
    ("text", "body", ()),
    ("int64", "body", ()),
    ("text", "body", ()),
    ("int32", "body", ()),
    ("flag", "body", ()),
    ("binary", "data", ()),
)
TYPES = {"int64": "bigint", "int32": "int", "text": "string", "flag": "boolean", "binary": "binary"}
PROGRAMS = {
    SetupAppend: ((4, "value", "segment"), (5, "value", "request_id"), (6, "value", "writer_id")),
    DataAppended: ((5, "value", "event_number"), (6, "value", "writer_id"), (7, "upper", "request_id")),
    ConditionalAppend: ((5, "value", "expected_offset"), (7, "bytes", "event.data")),
    KeepAlive: ((8, "constant", True),),
}
COMMANDS = (
    SetupAppend(1 << 33, WRITER, "scope/stream/0", "token"),
    DataAppended((5 << 32) | 4, WRITER, 9, 8, 12),
    ConditionalAppend(WRITER, 9, 4, Event(b"abc"), 6),
    KeepAlive(),
)
FRAMES = tuple(map(encode, COMMANDS))
OTHERS = (b"", b"abc", encode(Hello(17, 5)), encode(NoSuchSegment(1, "é", "", 0)), FRAMES[0][:-1])
MISSING = (None,) * 4 + ("é", -1, "other", None, False, b"data")


def filler(columns: Any = COLUMNS, programs: Any = PROGRAMS, conditions: Any = (), **how: Any) -> Any:
    return codec.SPEED.rows(columns, programs, conditions, **{"kinds": b"\1\0\2", "decodes": True} | how)


def given_of(frames: tuple[bytes, ...], kinds: bytes | None = None) -> tuple[bytes, ...]:
    kinds = kinds or bytes(len(frames))
    records = (Record(at, 1, Direction.REQUEST, RecordKind(kinds[at]), frame) for at, frame in enumerate(frames))
    return columns_of(list(records))


def rows(fill: Any, frames: tuple[bytes, ...], slow: Any, *, kinds: bytes | None = None) -> list[tuple[Any, ...]]:
    count, filled = fill.fill(*given_of(frames, kinds), 0, len(frames), slow)
    made = [values_in(each, count, TYPES[column[0]]) for each, column in zip(filled, COLUMNS, strict=True)]
    return list(zip(*made, strict=True))


def refuse(number: int) -> Any:
    raise KeyError(number)


def test_columns_are_filled_from_records_and_frames() -> None:
    text = str(WRITER)
    assert rows(filler(), FRAMES, refuse) == [
        (0, 0, SetupAppend.code, "frame", "scope/stream/0", 1 << 33, text, None, None, FRAMES[0]),
        (1, 1, DataAppended.code, "frame", None, 9, text, 5, None, FRAMES[1]),
        (2, 2, ConditionalAppend.code, "frame", None, 4, None, 3, None, FRAMES[2]),
        (3, 3, KeepAlive.code, "frame", None, None, None, None, True, FRAMES[3]),
    ]


def test_what_c_declines_is_a_row_of_python() -> None:
    asked: list[int] = []
    found = rows(filler(), OTHERS, lambda number: asked.append(number) or MISSING)
    assert asked == list(range(len(OTHERS)))
    assert [row[4:] for row in found] == [("é", -1, "other", None, False, b"data")] * len(OTHERS)
    assert [row[2] for row in found] == [None, None, Hello.code, NoSuchSegment.code, SetupAppend.code]
    found = rows(filler(), FRAMES, lambda _: MISSING, kinds=b"\0\1\2\0")
    assert [row[3] for row in found] == ["frame", "event", "bytes", "frame"]
    assert [row[9] for row in found] == [FRAMES[0], FRAMES[1], b"data", FRAMES[3]]


def test_frames_are_not_read_where_no_column_needs_them() -> None:
    fill = filler(programs=dict.fromkeys(PROGRAMS, ((8, "constant", False),)), decodes=False)
    cut = (FRAMES[0][:12], *FRAMES[1:])
    assert [row[8] for row in rows(fill, cut, refuse)] == [False] * 4


@looped(
    ("condition", "expected"),
    [
        (("ts_ns", False, False, ((1, 2),)), [1, 2]),
        (("ts_ns", False, True, ((1, 2),)), [0, 3]),
        (("code", False, False, ((KeepAlive.code, KeepAlive.code), (-5, -5))), [3]),
        (("ts_ns", False, False, ()), []),
    ],
)
def test_conditions_leave_records_out(condition: Any, expected: list[int]) -> None:
    assert [row[0] for row in rows(filler(conditions=(condition,)), FRAMES, refuse)] == expected


def test_a_missing_code_meets_a_condition_if_that_says_so() -> None:
    for missing in (True, False):
        fill = filler(conditions=(("code", missing, True, ()),))
        assert len(rows(fill, (b"abc", FRAMES[3]), lambda _: MISSING)) == 1 + missing


def test_misuse_raises() -> None:
    fill, given = filler().fill, given_of(FRAMES)
    negative, beyond = struct.pack("=4q", -1, 8, 9, 10), struct.pack("=4q", 1, 2, 3, 1 << 40)
    misused: list[Callable[[], Any]] = [
        fill,
        partial(fill, *given, 0, 5, refuse),
        partial(fill, *given, -1, 4, refuse),
        partial(fill, *given, 3, 2, refuse),
        partial(fill, *given[:2], negative, *given[3:], 0, 4, refuse),
        partial(fill, *given[:2], beyond, *given[3:], 3, 4, refuse),
        partial(fill, *given[:2], given[2][::-1], *given[3:], 0, 4, refuse),
        partial(fill, *given[:4], b"\3\3\3\3", given[5], 0, 4, refuse),
        partial(fill, *given[:5], "text", 0, 4, refuse),
        partial(fill, *given[:5], memoryview(given[5])[::2], 0, 4, refuse),
        partial(fill, None, *given[1:], 0, 4, refuse),
    ]
    others = given_of(OTHERS)
    odds: tuple[Any, ...] = (5, (), (None,) * 11, (5,) * 10, ("\ud800",) * 10, (None,) * 5 + (1 << 70,) + (None,) * 4)
    misused += [partial(fill, *others, 0, 5, lambda _, odd=odd: odd) for odd in odds]
    misused.append(partial(fill, *others, 0, 5, 5))
    for call in misused:
        with pytest.raises((TypeError, ValueError, OverflowError)):
            call()
    with pytest.raises(KeyError):
        fill(*others, 0, 5, refuse)
    labels = filler((("text", "direction", ("a",)),), {})
    with pytest.raises(ValueError, match="label"):
        labels.fill(*given[:3], b"\1\1\1\1", *given[4:], 0, 4, refuse)


def test_bytes_that_are_read_cannot_be_resized_meanwhile_and_can_be_afterwards() -> None:
    *given, data = given_of(OTHERS)
    held = bytearray(data)

    def resize(_: int) -> Any:
        with pytest.raises(BufferError):
            held.clear()
        return MISSING

    filler().fill(*given, held, 0, 5, resize)
    held.clear()


def test_no_reference_and_no_memory_is_kept() -> None:
    frames = FRAMES + OTHERS

    def use() -> None:
        rows(filler(conditions=(("ts_ns", False, False, ((0, 99),)),)), frames, lambda _: MISSING)
        with pytest.raises(KeyError):
            rows(filler(), frames, refuse)

    check_nothing_is_kept(use, [*COLUMNS, KINDS, *MISSING, *PROGRAMS, *frames])


@pytest.mark.needs("CPython's _testcapi")
def test_memory_that_runs_out_at_any_point_is_a_memory_error() -> None:
    speed, ask = codec.SPEED._speed, codec.SPEED._codec  # type: ignore[union-attr]
    programs = tuple((cls.code, tuple(step_of(cls, *step) for step in steps)) for cls, steps in PROGRAMS.items())
    conditions = (("ts_ns", 0, 0, ((0, 99),)), ("size", 0, 1, ()))
    given = given_of(FRAMES + OTHERS)
    calls: list[Callable[[], Any]] = [
        partial(filler().fill, *given, 0, len(given[3]), lambda _: MISSING),
        partial(speed.Rows, ask, COLUMNS, programs, conditions, b"\1", True),
    ]
    failed = 0
    for call in calls:
        expected = call()
        for found in without_one_allocation(call, 90):
            if found is FAILED:
                failed += 1
                continue
            assert type(found) is type(expected)
            assert found == expected or call is calls[1]
    assert failed > 40
