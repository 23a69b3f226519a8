"""Records of a state that processes share through a revisioned stream: initial states and updates.

A record is an int32, 1 followed by an initial state, or 2 followed by updates, each an int32 length and its bytes.
Refused (`ValueError`): records of another kind or with inconsistent lengths. Follows `UpdateOrInitSerializer`
(Pravega's client).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

_int32 = struct.Struct(">i")
_INITIAL: Final = 1
_UPDATES: Final = 2


def encode_initial(initial: bytes) -> bytes:
    """Encodes a record with an initial state."""
    return _int32.pack(_INITIAL) + initial


def encode_updates(updates: Sequence[bytes]) -> bytes:
    """Encodes a record with updates."""
    return _int32.pack(_UPDATES) + b"".join(_int32.pack(len(update)) + update for update in updates)


def decode_record(record: bytes) -> tuple[bytes | None, list[bytes]]:
    """Decodes a record: the initial state, or None and the updates. Raises ValueError."""
    if len(record) < _int32.size:
        raise ValueError(f"a record of {len(record)} bytes has no kind")
    (kind,) = _int32.unpack_from(record)
    at = _int32.size
    if kind == _INITIAL:
        return record[at:], []
    if kind != _UPDATES:
        raise ValueError(f"a record of unknown kind {kind}, expected 1 or 2")
    updates = []
    while at < len(record):
        if len(record) - at < _int32.size:
            raise ValueError(f"no length at {at} of a record of {len(record)} bytes")
        (length,) = _int32.unpack_from(record, at)
        at += _int32.size
        if not 0 <= length <= len(record) - at:
            raise ValueError(f"an update of {length} bytes at {at} of a record of {len(record)} bytes")
        updates.append(record[at : at + length])
        at += length
    return None, updates
