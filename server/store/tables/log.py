"""The log of a table segment: its serialised entries and their offsets.

A table segment is a segment: reading it as one gives these bytes, its length is theirs, and an entry's version is the
offset at which the entry was written. An entry is a header of 17 bytes (format 0, int32 key length, int32 value
length or -1 for a removal, int64 explicit version or -2^63 for "my own offset"), the key, the value.

Invariant: what is written here is read back the same, and only whole entries are ever given. Bytes that cannot be an
entry are refused with ``Unmapped``: a walk that starts inside of an entry, or that meets an event which was appended to
the table as if it were a stream.

Source: ``EntrySerializer`` and ``AsyncTableEntryReader``. As there, an entry with an empty key can be written but ends
every walk over the log that meets it; deliberate difference: it can be looked up all the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import NamedTuple, Protocol

from segstore.server.store.errors import Unmapped

NO_VERSION = -(1 << 63)
"""As a key's version: no condition. In an entry's header: the version is the entry's own offset."""

MAX_KEY_BYTES = 8_192
MAX_ENTRY_BYTES = 1 << 20
"""Bound of a whole entry, header included (``TableStore.MAXIMUM_KEY_LENGTH + MAXIMUM_VALUE_LENGTH``)."""

_HEADER = Struct(">Biiq")
HEADER_BYTES = _HEADER.size
_REMOVAL = -1


class TableLog(Protocol):
    """What a table reads of the segment beneath it (``chunks.SegmentData``)."""

    @property
    def start_offset(self) -> int:
        """The first offset that is kept."""
        ...

    @property
    def length(self) -> int:
        """The offset after the last byte."""
        ...

    def read_bytes(self, offset: int, size: int) -> bytes:
        """A copy of ``size`` bytes from ``offset``, all of which are kept."""
        ...


class LogEntry(NamedTuple):
    """One entry as it lies in the log. ``value`` is None for a removal."""

    offset: int
    end: int
    key: bytes
    version: int
    value: bytes | None


class Located(NamedTuple):
    """Where an entry lies in appended bytes, how many it takes, its key, and whether it removes it."""

    at: int
    size: int
    key: bytes
    removal: bool


def serialize_entry(key: bytes, value: bytes | bytearray | memoryview, version: int = NO_VERSION) -> bytes:
    """The bytes of an entry; ``version`` is given only where the entry is moved and must keep its old one."""
    return b"".join((_HEADER.pack(0, len(key), len(value), version), key, value))


def serialize_removal(key: bytes) -> bytes:
    """The bytes that record the removal of ``key``."""
    return _HEADER.pack(0, len(key), _REMOVAL, NO_VERSION) + key


def entry_at(log: TableLog, offset: int) -> LogEntry:
    """The entry at an offset that is known to hold one."""
    _, key_size, value_size, version = _HEADER.unpack(log.read_bytes(offset, HEADER_BYTES))
    body = log.read_bytes(offset + HEADER_BYTES, key_size + max(value_size, 0))
    return LogEntry(
        offset,
        offset + HEADER_BYTES + len(body),
        body[:key_size],
        offset if version == NO_VERSION else version,
        None if value_size == _REMOVAL else body[key_size:],
    )


def entry_size(log: TableLog, offset: int) -> int:
    """How many bytes the entry at an offset takes that is known to hold one."""
    _, key_size, value_size, _ = _HEADER.unpack(log.read_bytes(offset, HEADER_BYTES))
    return HEADER_BYTES + int(key_size) + max(int(value_size), 0)


def entries_between(log: TableLog, offset: int, end: int, *, window_bytes: int = 64 * 1024) -> Iterator[LogEntry]:
    """The entries that lie wholly in ``offset`` to ``end``, read lazily through windows of ``window_bytes``.

    An entry that the end cuts off stops the iteration in silence, as in the reference. Raises ``Unmapped`` at bytes
    that cannot be an entry's header: a position inside of an entry, or a foreign append.
    """
    window, base = b"", offset
    while offset < end:
        if offset + HEADER_BYTES > base + len(window):
            window, base = log.read_bytes(offset, min(window_bytes, end - offset)), offset
            if len(window) < HEADER_BYTES:
                return
        at = offset - base
        _, key_size, value_size, version = _HEADER.unpack_from(window, at)
        if not _is_header(key_size, value_size):
            raise Unmapped(f"no table entry lies at offset {offset}: key length {key_size}, value length {value_size}")
        size = HEADER_BYTES + key_size + max(value_size, 0)
        if offset + size > end:
            return
        if at + size > len(window):
            window, base, at = log.read_bytes(offset, max(size, min(window_bytes, end - offset))), offset, 0
        key = window[at + HEADER_BYTES : at + HEADER_BYTES + key_size]
        value = None if value_size == _REMOVAL else window[at + HEADER_BYTES + key_size : at + size]
        yield LogEntry(offset, offset + size, key, offset if version == NO_VERSION else version, value)
        offset += size


def locate_entries(data: bytes | bytearray | memoryview) -> list[Located] | None:
    """Where the entries lie in bytes that were appended to a table, or None if they are not entries and nothing else.

    Keys are copied, values are not looked at.
    """
    view = memoryview(data)
    found: list[Located] = []
    at, end = 0, len(view)
    while at < end:
        if at + HEADER_BYTES > end:
            return None
        form, key_size, value_size, _ = _HEADER.unpack_from(view, at)
        body = at + HEADER_BYTES
        size = HEADER_BYTES + key_size + max(value_size, 0)
        if form != 0 or key_size < 0 or value_size < _REMOVAL or at + size > end:
            return None
        found.append(Located(at, size, bytes(view[body : body + key_size]), value_size == _REMOVAL))
        at += size
    return found


def _is_header(key_size: int, value_size: int) -> bool:
    return 0 < key_size <= MAX_KEY_BYTES and value_size >= _REMOVAL and key_size + value_size <= MAX_ENTRY_BYTES
