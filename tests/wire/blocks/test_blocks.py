"""Append blocks: the encoder and the decoder against what was recorded, and against each other."""

from __future__ import annotations

import hashlib
import json
import re
import struct
from itertools import cycle, product
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from segstore.wire.blocks import Append, AppendBlockDecoder, AppendBlockEncoder, AppendViolation, FixedBlockSize
from segstore.wire.codec import FrameDecoder, decode, encode
from segstore.wire.commands import AppendBlock, AppendBlockEnd, KeepAlive, SetupAppend
from segstore.wire.errors import WireError
from segstore.wire.schema import COMMANDS, Buffer, Command
from tests.wire.blocks.appends import SEGMENTS, A, B, C, as_recorded, frames_of, put, ready

ROOT = Path(__file__).parents[3]
TYPES = {cls.type_name: cls for cls in COMMANDS.values()}
MAX_FRAME = 2**24 - 1


# Recorded ----------------------------------------------------------------------------------------------------------


def recorded(name: str) -> list[dict[str, Any]]:
    lines = (ROOT / "fixtures" / "vectors" / name).read_text("utf-8").splitlines()
    assert lines, f"{name} holds nothing"
    return [json.loads(line) for line in lines]


def snake(value: Any) -> Any:
    if isinstance(value, dict):
        return {re.sub(r"(?<!^)([A-Z])", r"_\1", key).lower(): snake(inner) for key, inner in value.items()}
    return [snake(inner) for inner in value] if isinstance(value, list) else value


def command_of(line: dict[str, Any]) -> Command:
    return TYPES[line["type"]].from_dict(snake(line["fields"]))


def payloads(step: dict[str, Any]) -> list[bytes]:
    """What the append of a step may have held: the recording tells length and seed of a long payload, and not whether
    it was those raw bytes or an event of them with its header; where its frame was recorded, that tells.
    """
    if "data" in step:
        return [bytes.fromhex(step["data"])]
    size, seed = step["data_len"], step["data_seed"]
    raw = (bytes((seed + i) % 251 for i in range(251)) * (size // 251 + 1))[:size]
    if size < 8:
        return [raw]
    event = struct.pack(">ii", 0, size - 8) + raw[: size - 8]
    written = step.get("out", "")
    return [data for data in (raw, event) if not written or data[:16].hex() in written]


def agrees(result: Command | Append, line: dict[str, Any]) -> None:
    got, want = as_recorded(result), snake(line)
    if line["kind"] == "append":
        data = got.pop("data")
        if "data" in want:
            assert data == bytes.fromhex(want.pop("data"))
        else:
            assert len(data) == want.pop("data_len")
            assert hashlib.sha256(data).hexdigest() == want.pop("data_sha256")
    assert got == want


STREAMS = recorded("append_streams.jsonl") + recorded("append_streams_big.jsonl")
DECODINGS = recorded("append_decode.jsonl")


def replay(stream: dict[str, Any], data_of: dict[int, bytes]) -> tuple[AppendBlockEncoder, list[tuple[bytes, bool]]]:
    """Runs the steps; what each wrote and whether it asked to be flushed."""
    size = stream["blockSize"]
    encoder = AppendBlockEncoder(None if size is None else lambda flow: FixedBlockSize(size, stream["batchTimeoutMs"]))
    now_ms = 0.0
    written = []
    for number, step in enumerate(stream["steps"]):
        out: list[Buffer] = []
        refused = False
        try:
            if step["op"] == "append":
                writer = UUID(step["writerId"])
                facts = step["eventNumber"], step["eventCount"], data_of[number]
                out = encoder.append(step["segment"], writer, *facts, 0, now_ms)
            elif step["op"] == "command":
                out = encoder.command(command_of(step))
            else:
                assert step["op"] == "advance"
                now_ms += step["ms"]
                out = encoder.tick(now_ms)
        except WireError:
            refused = True
        assert refused is ("exception" in step), f"step {number}"
        written.append((b"".join(out), encoder.flush_required))
    return encoder, written


def total_agrees(stream: dict[str, Any], data: bytes) -> bool:
    if "out" in stream:
        return bool(data.hex() == stream["out"])
    return bool(len(data) == stream["out_len"] and hashlib.sha256(data).hexdigest() == stream["out_sha256"])


@pytest.mark.seed("36.19")
@pytest.mark.seed("36.20")
@pytest.mark.parametrize("stream", STREAMS, ids=lambda stream: stream["name"])
def test_a_recorded_stream_is_written_byte_for_byte_and_read_as_recorded(stream: dict[str, Any]) -> None:
    appends = {number: payloads(step) for number, step in enumerate(stream["steps"]) if step["op"] == "append"}
    for choice in product(*appends.values()):
        encoder, written = replay(stream, dict(zip(appends, choice, strict=True)))
        whole = b"".join(data for data, _ in written)
        if total_agrees(stream, whole):
            break
    for number, (step, (data, flush)) in enumerate(zip(stream["steps"], written, strict=True)):
        assert step.get("out", data.hex()) == data.hex(), f"step {number}"
        assert step.get("out_len", len(data)) == len(data), f"step {number}"
        assert flush is step["flush"], f"step {number}"
    assert total_agrees(stream, whole)
    if not stream["complete"]:
        assert encoder.block_open
        return
    results = AppendBlockDecoder().feed_all([decode(frame) for frame in frames_of(whole)])
    assert len(results) == len(stream["decoded"])
    for result, line in zip(results, stream["decoded"], strict=True):
        agrees(result, line)


@pytest.mark.seed("36.21")
@pytest.mark.parametrize("case", DECODINGS, ids=lambda case: case["name"])
def test_a_recorded_sequence_of_commands_is_answered_as_recorded(case: dict[str, Any]) -> None:
    decoder = AppendBlockDecoder()
    for step in case["steps"]:
        command = decode(bytes.fromhex(step["hex"]))
        if "exception" in step:
            with pytest.raises(AppendViolation):
                decoder.feed(command)
            assert not decoder.block_open
            continue
        result = decoder.feed(command)
        if result is not None:
            agrees(result, step["out"][0])
        else:
            assert step["out"] == []


# Both --------------------------------------------------------------------------------------------------------------

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
    assert encoder.pending_writers == 0
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
