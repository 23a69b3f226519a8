"""Append block vectors: appends encoded as a client sends them, commands decoded as a server reads them."""

import hashlib
import struct
from collections.abc import Iterator
from itertools import product
from typing import Any
from uuid import UUID

from segstore.wire import COMMANDS, Buffer, Command, WireError, decode
from segstore.wire.blocks import Append, AppendBlockDecoder, AppendBlockEncoder, BlockSizeTracker
from segstore.wire.inspect import command_named, pieces
from tests.conformance.recorded import snake
from tests.conformance.report import byte_difference, field_differences, refusal_difference


class FixedBlockSize(BlockSizeTracker):
    """A constant size and timeout."""

    def __init__(self, size: int, timeout_ms: float = BlockSizeTracker.timeout_ms) -> None:
        super().__init__(0.0)
        self._fixed = size
        self.timeout_ms = timeout_ms

    def block_size(self) -> int:
        return self._fixed


def stream(what: dict[str, Any]) -> Iterator[str]:
    """Checks one recorded stream: each step's bytes and flush request, all bytes, and what a server reads from them."""
    appends = {number: payloads(step) for number, step in enumerate(what["steps"]) if step["op"] == "append"}
    encoder, written, whole = _replay(what, {number: choices[0] for number, choices in appends.items()})
    if sum(len(choices) > 1 for choices in appends.values()):
        for choice in product(*appends.values()):
            encoder, written, whole = _replay(what, dict(zip(appends, choice, strict=True)))
            if not list(_whole(what, whole)):
                break
    for number, (step, (data, flush, error)) in enumerate(zip(what["steps"], written, strict=True)):
        yield from (f"step {number}: {each}" for each in refusal_difference(step, error))
        if "out" in step and data != bytes.fromhex(step["out"]):
            yield f"step {number}: {byte_difference(bytes.fromhex(step['out']), data)}"
        if "out_len" in step and len(data) != step["out_len"]:
            yield f"step {number}: expected {step['out_len']} bytes, found {len(data)}"
        if "flush" in step and flush is not step["flush"]:
            yield f"step {number}: flush: expected {step['flush']}, found {flush}"
    yield from _whole(what, whole)
    frames = list(pieces(whole))
    if "frames" in what:
        found = [_announced(piece.data) for piece in frames]
        yield from (f"frames{difference}" for difference in field_differences(what["frames"], found))
    if "complete" in what and what["complete"] is encoder.block_open:
        yield f"complete: expected {what['complete']}, found {not encoder.block_open}"
    results = AppendBlockDecoder().feed_all([decode(piece.data) for piece in frames if piece.whole])
    decoded = [as_recorded(result) for result in results]
    yield from (f"decoded{each}" for each in field_differences(snake(what["decoded"]), decoded))


def _replay(
    what: dict[str, Any], data_of: dict[int, bytes]
) -> tuple[AppendBlockEncoder, list[tuple[bytes, bool, WireError | None]], bytes]:
    """Runs the steps; returns what each wrote, whether it requested a flush, its error, and all bytes together."""
    size, timeout_ms = what["blockSize"], what.get("batchTimeoutMs") or 0
    encoder = AppendBlockEncoder(None if size is None else lambda _: FixedBlockSize(size, timeout_ms))
    now_ms = 0.0
    written = []
    for number, step in enumerate(what["steps"]):
        out: list[Buffer] = []
        error = None
        try:
            if step["op"] == "append":
                writer, events = UUID(step["writerId"]), (step["eventNumber"], step["eventCount"])
                appended = (step["segment"], writer, *events, data_of[number], 0, now_ms)
                out = encoder.append(*appended, expected_length=_expected_length(step))
            elif step["op"] == "command":
                out = encoder.command(command_named(step["type"]).from_dict(snake(step["fields"])))
            elif step["op"] == "advance":
                now_ms += step["ms"]
                out = encoder.tick(now_ms)
            else:
                raise ValueError(f"step {number}: no such op: {step['op']!r}")
        except WireError as caught:
            error = caught
        written.append((b"".join(out), encoder.flush_required, error))
    return encoder, written, b"".join(data for data, _, _ in written)


def _expected_length(step: dict[str, Any]) -> int | None:
    """Returns the expected length of a step's append; None if it has none.

    Some records omit it. There the exception implies it, because the reference's encoder raises it in no other case.
    """
    given: int | None = step.get("expectedLength", step.get("expectedOffset"))
    if given is None and "IllegalArgumentException" in (step.get("exception") or ""):
        return 0
    return given


def payloads(step: dict[str, Any]) -> list[bytes]:
    """Returns the possible payloads of a step's append.

    A record holds length and seed of a long payload, but not whether an event header was added; the bytes of the whole
    stream decide.
    """
    if "data" in step:
        return [bytes.fromhex(step["data"])]
    size, seed = step["data_len"], step["data_seed"]
    raw = (bytes((seed + i) % 251 for i in range(251)) * (size // 251 + 1))[:size]
    if size < 8:
        return [raw]
    event = struct.pack(">ii", 0, size - 8) + raw[: size - 8]
    written = step.get("out", "")
    return [data for data in (raw, event) if not written or data[:16].hex() in written] or [raw]


def _whole(what: dict[str, Any], whole: bytes) -> Iterator[str]:
    if "out" in what and whole != bytes.fromhex(what["out"]):
        yield f"whole stream: {byte_difference(bytes.fromhex(what['out']), whole)}"
    if "out_len" in what and len(whole) != what["out_len"]:
        yield f"whole stream: expected {what['out_len']} bytes, found {len(whole)}"
    if "out_sha256" in what and (found := hashlib.sha256(whole).hexdigest()) != what["out_sha256"]:
        yield f"whole stream: expected SHA-256 {what['out_sha256']}, found {found}"


def _announced(frame: bytes) -> dict[str, Any]:
    """Returns the facts in a frame header; the last frame's block may be incomplete."""
    code, length = struct.unpack_from(">ii", frame)
    return {"type": COMMANDS[code].type_name if code in COMMANDS else str(code), "length": length}


def as_recorded(result: Command | Append) -> dict[str, Any]:
    """Converts what a server reads to the keys of a record."""
    if not isinstance(result, Append):
        return {"kind": "command", "type": result.type_name, "fields": result.to_dict()}
    return {
        "kind": "append",
        "segment": result.segment,
        "writer_id": str(result.writer_id),
        "event_number": result.event_number,
        "event_count": result.event_count,
        "data": bytes(result.data).hex(),
        "expected_offset": result.expected_offset,
        "request_id": result.request_id,
    }


def decoding(what: dict[str, Any]) -> Iterator[str]:
    """Checks one recorded sequence of frames: the result of each, and which are refused."""
    decoder = AppendBlockDecoder()
    for number, step in enumerate(what["steps"]):
        error = None
        found: Command | Append | None = None
        try:
            found = decoder.feed(decode(bytes.fromhex(step["hex"])))
        except WireError as caught:
            error = caught
        yield from (f"step {number}: {each}" for each in refusal_difference(step, error))
        given = [] if found is None else [as_recorded(found)]
        yield from (f"step {number}: {difference}" for difference in field_differences(snake(step["out"]), given))
