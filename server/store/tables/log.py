"""The log of a table segment: its serialised entries and their offsets.

A table segment is a segment with these bytes, and an entry's version is the offset at which it was written. An entry
consists of a 17-byte header (format 0, int32 key length, int32 value length or -1 for a removal, int64 explicit version
or -2^63 for the entry's own offset), the key and the value.

Invariant: entries are read back as they were written, and only complete entries are returned. Bytes that cannot be an
entry are refused with `Unmapped`: an iteration that starts inside an entry, or reaches an event that was appended to
the table as to a stream.

Source: `EntrySerializer` and `AsyncTableEntryReader`. As there, an entry with an empty key can be written but ends
every iteration that reaches it; deliberate difference: it can be looked up.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import NamedTuple

from segstore.server.store.chunks import SegmentData
from segstore.server.store.errors import Unmapped

NO_VERSION = -(1 << 63)
"""As a key's version: no condition. In an entry's header: the version is the entry's own offset."""

MAX_KEY_BYTES = 8_192
MAX_ENTRY_BYTES = 1 << 20
"""Maximum size of an entry, including its header (`TableStore.MAXIMUM_KEY_LENGTH + MAXIMUM_VALUE_LENGTH`)."""

_HEADER = Struct(">Biiq")
HEADER_BYTES = _HEADER.size
_REMOVAL = -1
_WINDOW_BYTES = 64 * 1024


class LogEntry(NamedTuple):
    """One entry of the log. `value` is None for a removal."""

    offset: int
    end: int
    key: bytes
    version: int
    value: bytes | None


def serialize_entry(key: bytes, value: bytes | bytearray | memoryview, version: int = NO_VERSION) -> bytes:
    """Returns the bytes of an entry; `version` is given only if a moved entry must keep its old version."""
    return b"".join((_HEADER.pack(0, len(key), len(value), version), key, value))


def serialize_removal(key: bytes) -> bytes:
    """Returns the bytes that record the removal of `key`."""
    return _HEADER.pack(0, len(key), _REMOVAL, NO_VERSION) + key


def entry_at(log: SegmentData, offset: int) -> LogEntry:
    """Returns the entry at `offset`, which must be the start of an entry."""
    _, key_size, value_size, version = _HEADER.unpack(log.read_bytes(offset, HEADER_BYTES))
    body = log.read_bytes(offset + HEADER_BYTES, key_size + max(value_size, 0))
    return LogEntry(
        offset,
        offset + HEADER_BYTES + len(body),
        body[:key_size],
        offset if version == NO_VERSION else version,
        None if value_size == _REMOVAL else body[key_size:],
    )


def entry_size(log: SegmentData, offset: int) -> int:
    """Returns the size of the entry at `offset`, which must be the start of an entry."""
    _, key_size, value_size, _ = _HEADER.unpack(log.read_bytes(offset, HEADER_BYTES))
    return HEADER_BYTES + int(key_size) + max(int(value_size), 0)


def entries_between(log: SegmentData, offset: int, end: int, *, least_key_bytes: int = 1) -> Iterator[LogEntry]:
    """Yields the complete entries from `offset` to `end`, read lazily in windows of 64 KiB.

    An incomplete entry at the end silently stops the iteration, as in the reference. Raises `Unmapped` for bytes that
    cannot be an entry's header: a position inside an entry, a foreign append, or a key that is too short.
    """
    window, base = b"", offset
    while offset < end:
        if offset + HEADER_BYTES > base + len(window):
            window, base = log.read_bytes(offset, min(_WINDOW_BYTES, end - offset)), offset
            if len(window) < HEADER_BYTES:
                return
        at = offset - base
        form, key_size, value_size, version = _HEADER.unpack_from(window, at)
        fits = least_key_bytes <= key_size <= MAX_KEY_BYTES and _REMOVAL <= value_size <= MAX_ENTRY_BYTES - key_size
        if form != 0 or not fits:
            raise Unmapped(f"no table entry lies at offset {offset}: key length {key_size}, value length {value_size}")
        size = HEADER_BYTES + key_size + max(value_size, 0)
        if offset + size > end:
            return
        if at + size > len(window):
            window, base, at = log.read_bytes(offset, max(size, min(_WINDOW_BYTES, end - offset))), offset, 0
        key = window[at + HEADER_BYTES : at + HEADER_BYTES + key_size]
        value = None if value_size == _REMOVAL else window[at + HEADER_BYTES + key_size : at + size]
        yield LogEntry(offset, offset + size, key, offset if version == NO_VERSION else version, value)
        offset += size
