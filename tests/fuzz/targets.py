"""What is fuzzed: functions from bytes to nothing that raise when the codec breaks a promise.

The promises: only `WireError` leaves it; the generated codec does what the schema does; what an append block's encoder
takes its decoder gives back; no more is held than the bytes that came.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import UUID

from msgspec.structs import replace

from segstore.wire import MAX_FRAME_BYTES, Command, FrameDecoder, FrameTooLarge, KeepAlive, SetupAppend, WireError
from segstore.wire.blocks import Append, AppendBlockDecoder, AppendBlockEncoder
from segstore.wire.codec import CODECS
from tests.conformance.blocks import FixedBlockSize
from tests.strategies import as_read
from tests.wire.agreement import check_frame, read_by_schema, refusal
from tests.wire.blocks.served import served

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["TARGETS"]


def decoder(data: bytes) -> None:
    """The input is a frame; its header's length is also set right, and its own bytes stand around it in a buffer."""
    check_frame(data, before=data[-16:], after=data[8:40])


LIMITS = (MAX_FRAME_BYTES, 300, 64, 20)


def framing(data: bytes) -> None:
    """The first byte says how the other bytes, a stream of frames, are cut into pieces and held."""
    if not data:
        return
    style, stream = data[0], data[1:]
    limit = LIMITS[style & 3]
    kind: Callable[[bytes], Any] = (bytes, bytearray, memoryview)[(style >> 2) % 3]
    expected, error, left = read_by_schema(stream, limit)
    for codec in CODECS:
        frames = FrameDecoder(max_frame_bytes=limit, codec=codec)
        found: list[Command] = []
        failed: WireError | None = None
        for piece in _pieces(stream, style >> 4):
            try:
                found += map(as_read, frames.feed(kind(piece)))
            except WireError as caught:
                failed = caught
                found += map(as_read, caught.decoded)
                break
            assert frames.buffered_bytes < limit or not frames.buffered_bytes
        assert found == list(map(as_read, expected)), f"{codec}: {found} is not {expected}"
        if error is None:
            assert failed is None
            assert frames.buffered_bytes == left
            continue
        assert failed is not None, f"{codec}: {error} was not raised"
        same = failed.code == error[1] if type(failed) is FrameTooLarge else (str(failed), failed.facts()) == error[1:]
        assert type(failed) is error[0], f"{codec}: {failed!r} is not {error}"
        assert same, f"{codec}: {failed!r} is not {error}"
        assert refusal(lambda frames=frames: frames.feed(b"")) is not None  # type: ignore[misc]


def _pieces(stream: bytes, style: int) -> Iterator[bytes]:
    """The stream whole (0), or in pieces of a size, or growing ones."""
    at = 0
    step = style or len(stream) or 1
    while at < len(stream):
        yield stream[at : at + step]
        at += step
        step += style & 1


def blocks(data: bytes) -> None:
    """The first bit says whether the other bytes are a connection's frames or a program for the encoder."""
    if data and data[0] & 1:
        _round_trip(data[0], data[1:])
    elif data:
        _connection(data[0] >> 1, data[1:])


def _connection(step: int, stream: bytes) -> None:
    frames = FrameDecoder()
    try:
        commands = frames.feed(stream)
    except WireError as error:
        commands = list(error.decoded)
    one_by_one, batches = AppendBlockDecoder(), AppendBlockDecoder()
    singles: list[Command | Append] = []
    ended: WireError | None = None
    for command in commands:
        try:
            result = one_by_one.feed(command)
        except WireError as error:
            ended = error
            break
        if result is not None:
            singles.append(result)
        assert one_by_one.block_bytes <= len(stream)
    found: list[Command | Append] = []
    failed: WireError | None = None
    size = step or len(commands) or 1
    for at in range(0, len(commands), size):
        try:
            found += batches.feed_all(commands[at : at + size])
        except WireError as error:
            found += error.decoded
            failed = error
            break
    assert found == singles, f"{found} is not {singles}"
    assert (type(failed), str(failed)) == (type(ended), str(ended))
    assert batches.block_open == one_by_one.block_open
    cuts = range(step, len(stream), step) if step else ()
    with_runs = served(stream, AppendBlockDecoder(), cuts=cuts)
    without = served(stream, AppendBlockDecoder(), cuts=cuts, runs=False)
    assert with_runs == without, f"{with_runs} is not {without}"
    assert sum(len(single.data) for single in singles if isinstance(single, Append)) <= len(stream) + 8 * len(commands)


def _kept(result: Command | Append) -> Command | Append:
    """A copy that outlives the buffer."""
    return replace(result, data=bytes(result.data)) if isinstance(result, Append) else as_read(result)


WRITERS = tuple(UUID(int=number) for number in (1, 2, 3))
BLOCK_SIZES = (0, 1, 8, 40, 100, 1024, 1 << 16, 1 << 30)


def _round_trip(style: int, program: bytes) -> None:
    """Two bytes an operation: an append, a tick, a flush, another command, a removal."""
    sizing = FixedBlockSize(BLOCK_SIZES[style >> 1 & 7])
    encoder = AppendBlockEncoder(lambda _: sizing, leftover_ms=5.0 if style & 16 else None)
    out: list[Any] = []
    for writer in WRITERS:
        out += encoder.command(SetupAppend(0, writer, f"s/{writer.int}", ""))
    sent: dict[UUID, list[tuple[int, int, bytes]]] = {writer: [] for writer in WRITERS}
    numbers = dict.fromkeys(WRITERS, 0)
    now_ms = 0.0
    for operation, fact in zip(program[:200:2], program[1:200:2], strict=False):
        writer = WRITERS[operation % 3]
        match operation // 3 % 8:
            case 0 | 1 | 2 | 3 as scale:
                payload = bytes([fact]) * (fact << 2 * scale)
                count = 1 + (fact if scale == 3 else 0)
                numbers[writer] += count
                out += encoder.append(f"s/{writer.int}", writer, numbers[writer], count, payload, 0, now_ms)
                sent[writer].append((numbers[writer], count, payload))
            case 4:
                now_ms += fact
                out += encoder.tick(now_ms)
            case 5:
                out += encoder.flush()
            case 6:
                out += encoder.command(KeepAlive())
            case _:
                out += encoder.remove(f"s/{writer.int}", writer)
                out += encoder.command(SetupAppend(0, writer, f"s/{writer.int}", ""))
    out += encoder.flush()
    assert (encoder.pending_bytes, encoder.block_open) == (0, False)
    appended = AppendBlockDecoder().feed_all(FrameDecoder().feed(b"".join(out)))
    for writer, appends in sent.items():
        got = [each for each in appended if isinstance(each, Append) and each.writer_id == writer]
        assert b"".join(each.data for each in got) == b"".join(payload for _, _, payload in appends)
        assert sum(each.event_count for each in got) == sum(count for _, count, _ in appends)
        assert {each.event_number for each in got} <= {number for number, _, _ in appends}


TARGETS: dict[str, Callable[[bytes], None]] = {"decoder": decoder, "framing": framing, "blocks": blocks}
"""Name → function; the corpus of each is fixtures/corpora/<name>."""
