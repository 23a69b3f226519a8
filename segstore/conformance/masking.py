"""Masks the parts of replies that vary from run to run, so that the rest can be compared byte for byte.

Masked: modification times, attribute values that are clock readings, times in index segments, entry counts of tables
(the index lags behind), the order of a delta's entries, names of storage chunks, stack traces (but not their presence),
messages that print one of the reference's buffers.

Invariant: a frame whose type has none of these, or that does not decode and encode to the same bytes, is unchanged.
Names of transient segments end in random digits: `TransientNames` replaces recorded names by the server's.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final

import msgspec

from segstore.wire import COMMANDS, Command, WireError, decode, encode
from segstore.wire.inspect import command_named

_CLOCK_MS: Final = range(1_500_000_000_000, 4_000_000_000_000)
_INDEX_ENTRY_BYTES: Final = 24
_TRACE: Final = "<stack trace>"
_TRANSIENT: Final = b"#transient."


def _with(**fields: Any) -> Callable[[Any], Command]:
    def change(command: Any) -> Command:
        changed: Command = msgspec.structs.replace(command, **fields)
        return changed

    return change


def _unchanged(command: Command) -> Command:
    return command


def _attribute(command: Any) -> Command:
    return (_with(value=0) if command.value in _CLOCK_MS else _unchanged)(command)


def _index_read(command: Any) -> Command:
    data = bytearray(command.data)
    for entry in range(0, len(data) - _INDEX_ENTRY_BYTES + 1, _INDEX_ENTRY_BYTES):
        data[entry + 16 : entry + 24] = bytes(8)
    return (_with(data=bytes(data)) if command.segment.endswith("#index") else _unchanged)(command)


def _delta(command: Any) -> Command:
    def content(entry: Any) -> tuple[bytes, int, bytes]:
        return bytes(entry.key.data), entry.key.key_version, bytes(entry.value.data)

    entries = tuple(sorted(command.entries.entries, key=content))
    return _with(entries=msgspec.structs.replace(command.entries, entries=entries))(command)


def _trace(command: Any) -> Command:
    return (_with(server_stack_trace=_TRACE) if command.server_stack_trace else _unchanged)(command)


_MASKS: Final[dict[int, Callable[[Any], Command]]] = {
    cls.code: _trace for cls in COMMANDS.values() if "server_stack_trace" in cls.__struct_fields__
} | {
    command_named(name).code: change
    for name, change in {
        "STREAM_SEGMENT_INFO": _with(last_modified=0),
        "SEGMENT_ATTRIBUTE": _attribute,
        "SEGMENT_READ": _index_read,
        "TABLE_SEGMENT_INFO": _with(entry_count=0),
        "STORAGE_CHUNKS_LISTED": _with(chunks=()),
        "TABLE_ENTRIES_DELTA_READ": _delta,
    }.items()
}

_ERROR_MESSAGE: Final = command_named("ERROR_MESSAGE").code


def mask(frame: bytes, *, messages: bool = False) -> bytes:
    """Masks what varies in a frame. messages: also mask the text of an ErrorMessage."""
    code = struct.unpack_from(">i", frame)[0] if len(frame) >= 8 else 0
    if code == _ERROR_MESSAGE and messages:
        change: Callable[[Any], Command] = _with(message="")
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
    return len(frame) >= 8 and struct.unpack_from(">i", frame)[0] == _ERROR_MESSAGE and b"ByteBuf(" in frame


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


_NAMING: Final = frozenset(command_named(name).code for name in ("SEGMENT_CREATED", "WRONG_HOST"))


def _transient(frame: bytes) -> list[bytes]:
    if len(frame) < 18 or struct.unpack_from(">i", frame)[0] not in _NAMING or _TRANSIENT not in frame:
        return []
    length = int.from_bytes(frame[16:18], "big")
    return [frame[18 : 18 + length]]
