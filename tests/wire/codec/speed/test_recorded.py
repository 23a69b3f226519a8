"""Bytes that a writer of traces takes, in C and in Python: the same records, memory and incomplete frames."""

from __future__ import annotations

import random
from itertools import product
from typing import Any

import pytest

from segstore.wire.codec import codec
from segstore.wire.trace import SECRET_CODES, TraceWriter, redact
from segstore.wire.trace.writer import RECORDED, RECORDED_SLOTS, RecordWriter, WriterState
from tests.looped import looped
from tests.wire.codec.speed.pairs import outcome, pairs
from tests.wire.trace.traces import frame, in_memory

pytestmark = pytest.mark.needs("the extension segstore._speed")

FEW = (0, 1, 7, 8, 9, 60, 4095, 4096)


def state(writer: TraceWriter) -> dict[str, Any]:
    """All that taking bytes changes."""
    found = {name: getattr(writer, name) for name in WriterState.__slots__ if name not in ("_records", "_view")}
    found |= {f"records.{name}": getattr(writer._records, name) for name in RecordWriter.__slots__}
    found["memory"] = bytes(writer._view[: writer._used])
    found["_held"] = list(found["_held"].items())
    return found


def stream(chance: random.Random) -> bytes:
    """Many frames of a stream, of which some are odd."""
    sizes = chance.choice(((100, 20), (57,), (1024, 21), (0,), (3000, 9000), (20_000,), (90_000, 200_000)))
    frames = [
        frame(chance.choice((2, 7, -5)), bytes([at % 251]) * size)
        for at in range(200 if sum(sizes) < 50_000 else 9)
        for size in sizes
    ]
    if chance.random() < 0.1:
        frames[chance.randrange(len(frames))] = frame(chance.choice(sorted(SECRET_CODES)), bytes(90))
    if chance.random() < 0.1:
        frames[chance.randrange(len(frames))] = b"\0\0\0\2" + chance.choice((b"\xff\xff\xff\xff", b"\x7f\0\0\0"))
    return b"".join(frames)


@looped("seed", range(60))
def test_a_writer_in_c_and_in_python_is_the_same_after_each_piece(seed: int) -> None:
    chance = random.Random(seed)
    memory, settings = chance.choice((30_000, 1 << 20)), {"block_bytes": chance.choice((1 << 14, 1 << 19))}
    settings |= {"flush_after_ns": chance.choice((5, 1 << 62)), "max_frame_bytes": chance.choice((5000, 1 << 24))}
    is_redacted = chance.random() < 0.5
    more: dict[str, Any] = {"redact": redact, "redact_codes": SECRET_CODES} if is_redacted else {}
    writers = [in_memory(memory, **settings, **more) for _ in range(2)]
    streams, now = {key: (stream(chance), 0) for key in range(4)}, chance.choice((0, 1 << 60))
    taken = 0
    for _ in range(150):
        key = chance.randrange(4)
        data, at = streams[key]
        size = chance.choice((*FEW, 4096 + chance.randrange(9000), chance.randrange(60_000), chance.randrange(200_000)))
        streams[key] = data, at + size
        piece = chance.choice((bytes, bytearray, memoryview))(data[at : at + size])
        lasting = type(piece) is memoryview and chance.random() < 0.5
        now += chance.randrange(-1, 3)
        calls = zip(pairs()["add"], writers, strict=True)
        found = [call(each, now, key >> 1, key & 1, piece, lasting) for call, each in calls]
        assert found[0] == found[1]
        assert state(writers[0]) == state(writers[1])
        if found[0] or chance.random() < 0.05:
            block, other = (each.take() for each in writers)
            assert block == other
            taken += len(block)
        if chance.random() < 0.02:
            for each in writers:
                each.opened(now, 9, peer="x")
    block, other = (each.finish(now) for each in writers)
    assert block == other
    assert taken + len(block) > 50_000


def test_c_takes_many_frames_and_what_completes_the_last_one() -> None:
    def add(*given: Any) -> None:
        pytest.fail(f"C has left {given} to Python")

    assert codec.SPEED is not None
    take = codec.SPEED.shortcut(add, *RECORDED, slots=RECORDED_SLOTS)
    frames, writer = frame(2, bytes(100)) * 500, in_memory()
    for at in range(0, 50_000, 5000):
        assert not take(writer, 5 + at, 1, 0, frames[at : at + 5000])
        assert not take(writer, 6 + at, 1, 1, frames[: 108 * 50])
    (half,) = (each for each in writer._held.values() if each is not None)
    assert len(half) == 50_000 % 108
    columns = writer.take_pending().columns()
    assert len(columns) == 50_000 // 108 + 10 * 50
    assert {bytes(each.data) for each in columns} == {frame(2, bytes(100))}


ODD = (None, True, -1, 1 << 63, (1 << 63) - 1, 1 << 40, "text", b"", b"data", bytearray(b"x"), {}, {2: None}, [], 0)


@looped("name", [*WriterState.__slots__, *(f"_records.{each}" for each in RecordWriter.__slots__)])
def test_a_writer_with_an_odd_slot_has_the_outcome_that_it_has_in_python(name: str) -> None:
    for odd, taken in product(ODD, (50, 0)):
        found = []
        for call in pairs()["add"]:
            writer = in_memory()
            call(writer, 5, 1, 0, frame(2, bytes(100)) * taken)
            owner = writer._records if name.startswith("_records.") else writer
            kept = getattr(owner, name.removeprefix("_records."))
            setattr(owner, name.removeprefix("_records."), odd)
            result = outcome(call, writer, 9, 1, 0, frame(2, bytes(100)) * 50)
            setattr(owner, name.removeprefix("_records."), kept)
            found.append(result if isinstance(result, bool) else result[0])
        assert found[0] == found[1], odd


@looped("half", [b"text", bytearray(b"a frame of which there is the start"), memoryview(b"x"), bytearray(), 5, None])
@looped("length", [None, 0, 5, 40, 1 << 31, (1 << 32) - 1])
def test_an_odd_incomplete_frame_has_the_outcome_that_it_has_in_python(half: Any, length: int | None) -> None:
    found = []
    for call in pairs()["add"]:
        writer = in_memory()
        call(writer, 5, 1, 0, frame(2, bytes(100)) * 50 + b"\0\0\0\2\0\0\0\x20 and so on")
        assert writer._held[2] == b"\0\0\0\2\0\0\0\x20 and so on"
        odd = type(half)(half) if isinstance(half, bytes | bytearray | memoryview) else half
        if length is not None and type(odd) is bytearray:
            odd[4:8] = length.to_bytes(4, "big")
        writer._held[2] = odd
        result = outcome(call, writer, 9, 1, 0, bytes(26) + frame(2, bytes(100)) * 50)
        found.append((result, state(writer)) if isinstance(result, bool) else result)
    assert found[0] == found[1]


def test_bytes_that_last_are_kept_where_they_are_and_the_others_are_copied() -> None:
    for call in pairs()["add"]:
        writer, area = in_memory(), memoryview(bytearray(frame(2, bytes(100)) * 5_000))
        call(writer, 5, 1, 0, area[:50], True)
        call(writer, 6, 1, 1, area[:108])
        call(writer, 7, 1, 0, area[50:-50], True)
        call(writer, 8, 1, 0, area[-50:], True)
        pending = writer.take_pending()
        assert [getattr(each, "obj", None) is area.obj for each in pending.data] == [False, True, False]
        assert [len(each) for each in pending.data] == [216, 108 * 4_998, 108]
        assert [(each.ts_ns, bytes(each.data)) for each in pending.columns()] == [
            (at, bytes(area[:108])) for at in (6, *[7] * 4_999, 8)
        ]
