"""What the tests of append blocks share: writers, frames of bytes, decoders and encoders that are set up."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

from segstore.wire.blocks import Append, AppendBlockDecoder, AppendBlockEncoder
from segstore.wire.commands import SetupAppend
from segstore.wire.schema import COMMANDS, Buffer, Command
from tests.conformance import blocks

ROOT = Path(__file__).parents[3]
A, B, C = (UUID(int=int(digit * 32, 16)) for digit in "123")
SEGMENTS = {A: "scope/stream/0.#epoch.0", B: "scope/stream/1.#epoch.0", C: "scope/stream/0.#epoch.0"}
TYPES = {cls.type_name: cls for cls in COMMANDS.values()}
MAX_FRAME = 2**24 - 1


def frames_of(data: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(data):
        end = at + 8 + int.from_bytes(data[at + 4 : at + 8], "big")
        assert end <= len(data), "the last frame is cut"
        yield data[at:end]
        at = end


def as_recorded(result: Command | Append) -> dict[str, Any]:
    """What conformance compares, with the data as bytes."""
    recorded = blocks.as_recorded(result)
    return {**recorded, "data": bytes(result.data)} if isinstance(result, Append) else recorded


def set_up(*writers: UUID) -> AppendBlockDecoder:
    decoder = AppendBlockDecoder()
    for number, writer in enumerate(writers or (A,)):
        setup = SetupAppend(number, writer, SEGMENTS[writer], "")
        assert decoder.feed(setup) is setup
    return decoder


def ready(size: int | None, *writers: UUID, **options: Any) -> AppendBlockEncoder:
    encoder = AppendBlockEncoder(None if size is None else lambda flow: blocks.FixedBlockSize(size), **options)
    for number, writer in enumerate(writers or (A,)):
        encoder.command(SetupAppend(number, writer, SEGMENTS[writer], ""))
    return encoder


def put(encoder: AppendBlockEncoder, writer: UUID, number: int, data: Buffer, **more: Any) -> list[Buffer]:
    return encoder.append(
        SEGMENTS[writer], writer, number, more.get("count", 1), data, more.get("request_id", 0), more.get("now_ms", 0.0)
    )
