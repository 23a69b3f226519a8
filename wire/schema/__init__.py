"""Field types and command declarations, which codecs are generated from."""

from segstore.wire.schema.modified_utf8 import decode_mutf8, encode_mutf8, utf16
from segstore.wire.schema.record import Nested, Rows, WireStruct
from segstore.wire.schema.schema import (
    COMMANDS,
    WITH_PREVIOUS,
    Command,
    Data,
    Flag,
    Id,
    Int8,
    Int32,
    Int64,
    Text,
    Token,
    Unknown,
    command,
    record,
)
from segstore.wire.schema.types import MAX_FRAME_BYTES, BodyStream, Buffer, FieldType

__all__ = [
    "COMMANDS",
    "MAX_FRAME_BYTES",
    "WITH_PREVIOUS",
    "BodyStream",
    "Buffer",
    "Command",
    "Data",
    "FieldType",
    "Flag",
    "Id",
    "Int8",
    "Int32",
    "Int64",
    "Nested",
    "Rows",
    "Text",
    "Token",
    "Unknown",
    "WireStruct",
    "command",
    "decode_mutf8",
    "encode_mutf8",
    "record",
    "utf16",
]
