"""Masks the parts of replies that vary from run to run, so that the rest can be compared byte for byte.

Masked: modification times, attribute values that are clock readings, times in index segments, entry counts of tables
(the index lags behind), the order of a delta's entries, names of storage chunks, stack traces (but not their presence),
messages that print one of the reference's buffers.

Invariant: a frame whose type has none of these, or that does not decode and encode to the same bytes, is unchanged.
Names of transient segments end in random digits: `TransientNames` replaces recorded names by the server's.
"""

import struct
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from msgspec.structs import replace

from segstore.wire import (
    COMMANDS,
    ErrorMessage,
    SegmentAttribute,
    SegmentCreated,
    SegmentRead,
    StorageChunksListed,
    StreamSegmentInfo,
    TableEntriesDeltaRead,
    TableSegmentInfo,
    WireError,
    WrongHost,
    decode,
    encode,
)

_CLOCK_MS: Final = range(1_500_000_000_000, 4_000_000_000_000)
_INDEX_ENTRY_BYTES: Final = 24
_TRACE: Final = "<stack trace>"
_TRANSIENT: Final = b"#transient."


def _attribute(command: Any) -> Any:
    return replace(command, value=0) if command.value in _CLOCK_MS else command


def _index_read(command: Any) -> Any:
    data = bytearray(command.data)
    for entry in range(0, len(data) - _INDEX_ENTRY_BYTES + 1, _INDEX_ENTRY_BYTES):
        data[entry + 16 : entry + 24] = bytes(8)
    return replace(command, data=bytes(data)) if command.segment.endswith("#index") else command


def _delta(command: Any) -> Any:
    def content(entry: Any) -> tuple[bytes, int, bytes]:
        return bytes(entry.key.data), entry.key.key_version, bytes(entry.value.data)

    entries = tuple(sorted(command.entries.entries, key=content))
    return replace(command, entries=replace(command.entries, entries=entries))


def _trace(command: Any) -> Any:
    return replace(command, server_stack_trace=_TRACE) if command.server_stack_trace else command


_MASKS: Final[dict[int, Callable[[Any], Any]]] = {
    **{cls.code: _trace for cls in COMMANDS.values() if "server_stack_trace" in cls.__struct_fields__},
    StreamSegmentInfo.code: partial(replace, last_modified=0),
    SegmentAttribute.code: _attribute,
    SegmentRead.code: _index_read,
    TableSegmentInfo.code: partial(replace, entry_count=0),
    StorageChunksListed.code: partial(replace, chunks=()),
    TableEntriesDeltaRead.code: _delta,
}


def mask(frame: bytes, *, messages: bool = False) -> bytes:
    """Masks what varies in a frame. messages: also mask the text of an ErrorMessage."""
    code = struct.unpack_from(">i", frame)[0] if len(frame) >= 8 else 0
    if code == ErrorMessage.code and messages:
        change: Callable[[Any], Any] = partial(replace, message="")
    elif code in _MASKS:
        change = _MASKS[code]
    else:
        return frame
    try:
        command = decode(frame)
        if encode(command) != frame:
            return frame
        return encode(change(command))
    except WireError:
        return frame


def prints_a_buffer(frame: bytes) -> bool:
    """Whether this is an ErrorMessage whose text prints a Java buffer, which no other implementation can repeat."""
    return len(frame) >= 8 and struct.unpack_from(">i", frame)[0] == ErrorMessage.code and b"ByteBuf(" in frame


class TransientNames:
    """Maps recorded names of transient segments to the server's; both have the same length."""

    def __init__(self) -> None:
        self._given: dict[bytes, bytes] = {}

    def learn(self, expected: list[bytes], found: list[bytes]) -> None:
        """Records the names in the replies to one step, in order."""
        recorded = [name for frame in expected for name in _transient(frame)]
        given = [name for frame in found for name in _transient(frame)]
        for name, other in zip(recorded, given, strict=False):
            if name not in self._given and len(name) == len(other):
                self._given[name] = other

    def put(self, data: bytes) -> bytes:
        """Replaces recorded names by the server's."""
        for name, other in self._given.items():
            data = data.replace(name, other)
        return data


_NAMING: Final = frozenset((SegmentCreated.code, WrongHost.code))


def _transient(frame: bytes) -> list[bytes]:
    if len(frame) < 18 or struct.unpack_from(">i", frame)[0] not in _NAMING or _TRANSIENT not in frame:
        return []
    length = int.from_bytes(frame[16:18], "big")
    return [frame[18 : 18 + length]]
