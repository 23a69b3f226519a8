"""Encodes and decodes commands, splits byte streams into frames, and supports older protocol versions."""

from segstore.wire.codec.codec import (
    HEADER_BYTES,
    OLDEST_COMPATIBLE_VERSION,
    WIRE_VERSION,
    Codec,
    UnknownPolicy,
    decode,
    encode,
    encode_parts,
)
from segstore.wire.codec.framing import AppendRows, FrameDecoder, WholeAppend
from segstore.wire.codec.older_frames import frame_decoder
from segstore.wire.codec.versions import (
    COMMANDS_SINCE,
    COMMANDS_UNTIL,
    FIELDS_SINCE,
    RELEASES,
    encoder,
    longest_frame_in,
    parts_encoder,
)

__all__ = [
    "COMMANDS_SINCE",
    "COMMANDS_UNTIL",
    "FIELDS_SINCE",
    "HEADER_BYTES",
    "OLDEST_COMPATIBLE_VERSION",
    "RELEASES",
    "WIRE_VERSION",
    "AppendRows",
    "Codec",
    "FrameDecoder",
    "UnknownPolicy",
    "WholeAppend",
    "decode",
    "encode",
    "encode_parts",
    "encoder",
    "frame_decoder",
    "longest_frame_in",
    "parts_encoder",
]
