"""Append blocks: the encoder and the decoder against what was recorded, and against each other."""

from itertools import cycle
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from segstore.wire.blocks import AppendBlockDecoder
from segstore.wire.codec import FrameDecoder, encode
from segstore.wire.commands import AppendBlock, AppendBlockEnd, KeepAlive, SetupAppend
from segstore.wire.schema import Buffer
from tests.conformance import blocks
from tests.conformance.recorded import read_lines
from tests.looped import looped
from tests.wire.blocks.appends import SEGMENTS, A, B, C, as_recorded, frames_of, put, ready

ROOT = Path(__file__).parents[3]
MAX_FRAME = 2**24 - 1


def recorded(name: str) -> list[dict[str, Any]]:
    return [line.what for line in read_lines(ROOT / "fixtures" / "vectors" / name)]


STREAMS = recorded("append_streams.jsonl") + recorded("append_streams_big.jsonl")
DECODINGS = recorded("append_decode.jsonl")


@pytest.mark.seed("36.19")
@pytest.mark.seed("36.20")
@looped("stream", STREAMS)
def test_a_recorded_stream_is_written_byte_for_byte_and_read_as_recorded(stream: dict[str, Any]) -> None:
    assert list(blocks.stream(stream)) == []


@pytest.mark.seed("36.21")
@looped("case", DECODINGS)
def test_a_recorded_sequence_of_commands_is_answered_as_recorded(case: dict[str, Any]) -> None:
    assert list(blocks.decoding(case)) == []


OPERATION = st.one_of(
    st.tuples(st.just("append"), st.sampled_from([A, B, C]), st.integers(1, 300), st.binary(max_size=80)),
    st.tuples(st.just("append"), st.sampled_from([A, B, C]), st.just(1), st.integers(0, 400_000).map(bytes)),
    st.tuples(st.just("tick"), st.integers(0, 30)),
    st.tuples(st.just("flush")),
    st.tuples(st.just("keep-alive")),
    st.tuples(st.just("setup"), st.sampled_from([A, B, C])),
    st.tuples(st.just("remove"), st.sampled_from([A, B, C])),
)


@settings(deadline=None)
@given(
    st.lists(OPERATION, max_size=40),
    st.sampled_from([None, 0, 1, 8, 40, 100, 1024, 100_000, 2**30]),
    st.one_of(st.none(), st.just(5.0)),
    st.lists(st.sampled_from([1, 7, 8, 24, 100, 5000, 70_000, 10**6]), min_size=1, max_size=8).filter(
        lambda c: max(c) > 50
    ),
)
def test_every_append_comes_back_in_order(
    operations: list[Any], size: int | None, leftover_ms: float | None, chunks: list[int]
) -> None:
    encoder = ready(size, leftover_ms=leftover_ms)
    out: list[Buffer] = []
    numbers = dict.fromkeys((A, B, C), 0)
    sent: dict[UUID, list[tuple[int, int, bytes]]] = {A: [], B: [], C: []}
    for writer in (A, B, C):
        out += encoder.command(SetupAppend(0, writer, SEGMENTS[writer], ""))
    now_ms = 0.0
    for operation, *facts in operations:
        if operation == "append":
            writer, count, data = facts
            numbers[writer] += count
            out += put(encoder, writer, numbers[writer], data, count=count, now_ms=now_ms)
            sent[writer].append((numbers[writer], count, data))
        elif operation == "tick":
            now_ms += facts[0]
            out += encoder.tick(now_ms)
            deadline = encoder.deadline()
            assert deadline is None or deadline > now_ms
        elif operation == "flush":
            out += encoder.flush()
        elif operation == "keep-alive":
            out += encoder.command(KeepAlive())
        else:
            if operation == "remove":
                out += encoder.remove(SEGMENTS[facts[0]], facts[0])
            out += encoder.command(SetupAppend(1, facts[0], SEGMENTS[facts[0]], ""))
    out += encoder.flush()
    assert encoder.pending_bytes == 0
    assert not encoder.block_open

    frames, decoder = FrameDecoder(), AppendBlockDecoder()
    stream = b"".join(out)
    results: list[Any] = []
    sizes = cycle(chunks)
    at = 0
    while at < len(stream):
        # A buffer that is used again: what was kept of it without a copy would show.
        buffer = bytearray(stream[at : at + next(sizes)])
        at += len(buffer)
        results += [as_recorded(result) for result in decoder.feed_all(frames.feed(buffer))]
        buffer[:] = bytes(len(buffer))
    assert not decoder.block_open
    for writer, appends in sent.items():
        got = [r for r in results if r["kind"] == "append" and r["writer_id"] == str(writer)]
        assert b"".join(r["data"] for r in got) == b"".join(data for _, _, data in appends)
        assert sum(r["event_count"] for r in got) == sum(count for _, count, _ in appends)
        assert [r["event_number"] for r in got] == sorted({r["event_number"] for r in got})
        # Each result is some appends whole: its bytes end where the append of its number ends.
        lengths: dict[int, int] = {}
        total = 0
        for number, _, data in appends:
            total += len(data)
            lengths[number] = total
        position = 0
        for r in got:
            position += len(r["data"])
            assert position == lengths[r["event_number"]]


def test_the_encoder_writes_what_the_codec_writes() -> None:
    parts = put(ready(None, A), A, 1, b"event")
    block, block_end = frames_of(b"".join(parts))
    assert block == encode(AppendBlock(A, b"event"))
    assert block_end == encode(AppendBlockEnd(A, 5, b"", 1, 1, 0))
