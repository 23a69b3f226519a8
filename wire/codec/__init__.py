"""Encodes and decodes commands, splits byte streams into frames, and supports older protocol versions."""

from segstore.wire.codec.codec import (
    ACCELERATOR,
    CODECS,
    EVENT,
    HEADER_BYTES,
    OLDEST_COMPATIBLE_VERSION,
    WIRE_VERSION,
    Codec,
    UnknownPolicy,
    codec_backend,
    decode,
    encode,
    encode_parts,
    or_in_c,
)
from segstore.wire.codec.framing import FrameDecoder, FrameMemory, runs_at
from segstore.wire.codec.joining import Joined
from segstore.wire.codec.speed import Acknowledged
from segstore.wire.codec.versions import (
    COMMANDS_SINCE,
    COMMANDS_UNTIL,
    FIELDS_SINCE,
    RELEASES,
    encoder,
    frame_decoder,
    longest_frame_in,
    parts_encoder,
)

__all__ = [
    "ACCELERATOR",
    "CODECS",
    "COMMANDS_SINCE",
    "COMMANDS_UNTIL",
    "EVENT",
    "FIELDS_SINCE",
    "HEADER_BYTES",
    "OLDEST_COMPATIBLE_VERSION",
    "RELEASES",
    "WIRE_VERSION",
    "Acknowledged",
    "Codec",
    "FrameDecoder",
    "FrameMemory",
    "Joined",
    "UnknownPolicy",
    "codec_backend",
    "decode",
    "encode",
    "encode_parts",
    "encoder",
    "frame_decoder",
    "longest_frame_in",
    "or_in_c",
    "parts_encoder",
    "runs_at",
]
