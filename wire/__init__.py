"""Codec for the wire protocol of Pravega's segment store: bytes ↔ commands, with no I/O.

>>> from segstore.wire import decode, encode, SegmentCreated
>>> decode(encode(SegmentCreated(request_id=9, segment="a/b/0")))
SegmentCreated(request_id=9, segment='a/b/0')
"""

from segstore.wire import commands
from segstore.wire.codec import (
    HEADER_BYTES,
    OLDEST_COMPATIBLE_VERSION,
    WIRE_VERSION,
    FrameDecoder,
    codec_backend,
    decode,
    encode,
    encode_parts,
)
from segstore.wire.commands import *  # noqa: F403 — the names of its `__all__`, listed there once
from segstore.wire.errors import BadField, FrameTooLarge, OutOfOrder, Truncated, UnknownCommand, WireError
from segstore.wire.schema import COMMANDS, MAX_FRAME_BYTES, Buffer, Command, Unknown, WireStruct

__all__ = [
    "COMMANDS",
    "HEADER_BYTES",
    "MAX_FRAME_BYTES",
    "OLDEST_COMPATIBLE_VERSION",
    "WIRE_VERSION",
    "BadField",
    "Buffer",
    "Command",
    "FrameDecoder",
    "FrameTooLarge",
    "OutOfOrder",
    "Truncated",
    "Unknown",
    "UnknownCommand",
    "WireError",
    "WireStruct",
    "codec_backend",
    "decode",
    "encode",
    "encode_parts",
]
__all__ += commands.__all__
