"""Deliberate differences from the reference that recorded files show; docs/project/deviations.md has all, with reasons.

A difference is excused only if a rule below names it.
"""

from typing import Final

from segstore.wire import HEADER_BYTES
from segstore.wire.inspect import pieces

LEGACY_TABLE_COMMANDS: Final = "legacy-table-commands"
NO_SYSTEM_SCOPE: Final = "no-system-scope"

_LEGACY_CODES: Final = tuple(code.to_bytes(4, "big") for code in (72, 73))


def deviation_of(sent: bytes) -> str | None:
    """Returns the deviation that excuses what these frames result in, if any."""
    legacy = any(len(piece.data) >= HEADER_BYTES and piece.data.startswith(_LEGACY_CODES) for piece in pieces(sent))
    if legacy:
        return LEGACY_TABLE_COMMANDS
    return NO_SYSTEM_SCOPE if b"_system/containers/metadata_" in sent else None
