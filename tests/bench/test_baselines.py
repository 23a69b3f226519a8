"""The codecs that ours is measured against do the same work: equal values, equal bytes, the same frames refused."""

from __future__ import annotations

import struct

import pytest

from bench.baselines import handwritten
from bench.baselines.msgpack import Msgpack
from bench.samples import samples
from segstore.wire import Command, NoSuchSegment, SegmentCreated, WireError, decode, encode

SAMPLES = samples(3, 2)
VALUES = [value for values in SAMPLES.values() for value in values]
ODD = [SegmentCreated(1, "é\0\U0001f600"), NoSuchSegment(2, "", "trace\ud800", -1), SegmentCreated(3, "x" * 65535)]


def refused(frame: bytes) -> bool:
    try:
        handwritten.decode(frame)
    except WireError:
        return True
    return False


@pytest.mark.parametrize("value", VALUES + ODD, ids=lambda value: type(value).__name__)
def test_code_by_hand_writes_and_reads_what_the_codec_does(value: Command) -> None:
    frame = encode(value)
    assert handwritten.encode(value) == frame
    assert handwritten.decode(frame) == value == handwritten.decode(bytearray(frame))


@pytest.mark.parametrize("name", SAMPLES)
def test_code_by_hand_reads_and_refuses_cut_bodies_as_the_codec_does(name: str) -> None:
    frame = encode(SAMPLES[name][0])
    for size in range(len(frame) - 8):
        cut = struct.pack(">4si", frame[:4], size) + frame[8 : 8 + size]
        try:
            expected = decode(cut)
        except WireError:
            assert refused(cut), cut.hex()
        else:
            assert handwritten.decode(cut) == expected, cut.hex()


def test_code_by_hand_refuses_wrong_headers_texts_and_values() -> None:
    frame = encode(SegmentCreated(1, "segment"))
    for wrong in (b"", frame[:7], frame[:-1], frame + b"x", b"\0\0\0\x63" + frame[4:], frame[:-1] + b"\xf0"):
        assert refused(wrong), wrong.hex()
    for value in (SegmentCreated(1 << 63, ""), SegmentCreated(1, "x" * 65536), SegmentCreated(1, None)):  # type: ignore[arg-type]
        with pytest.raises(WireError):
            handwritten.encode(value)


def test_there_are_a_dozen_commands_and_none_is_longer_than_1_kb() -> None:
    assert len(SAMPLES) >= 12
    assert {type(value) for value in VALUES} == set(handwritten.WRITERS)
    assert max(len(encode(value)) for value in VALUES) <= 1024


def test_the_twins_in_msgpack_come_back_equal() -> None:
    twins = Msgpack([type(values[0]) for values in SAMPLES.values()])
    for value in VALUES:
        twin = twins.twin(value)
        assert twins.decode(twins.encode(twin)) == twin
        assert twin.__struct_fields__ == value.__struct_fields__
