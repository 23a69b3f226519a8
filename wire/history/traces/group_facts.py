"""Facts of a reader group's state, as Java's and this project's clients append it to the group's stream."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from segstore.wire.blocks import EVENT_HEADER_BYTES
from segstore.wire.history.facts import Fact, GroupUpdate, Place, Waiting, positions_key
from segstore.wire.reader_groups import decode_updates

OF_GROUPS: Final = "/_RG"
"""Part of the names of segments that may have such a state."""


def assignments(place: Place, segment: str, append: Waiting) -> Iterator[Fact]:
    """Yields the update of a group's state in an acknowledged append; nothing for unconditional appends.

    place: of the acknowledgement. segment: its name contains `OF_GROUPS`.
    """
    command = append.command
    if not hasattr(command, "expected_offset"):
        return
    data = bytes(command.event.data if hasattr(command, "event") else command.data[EVENT_HEADER_BYTES:])
    try:
        updates = decode_updates(data)
    except ValueError:
        return  # another application's stream that has such a name
    end = command.expected_offset + EVENT_HEADER_BYTES + len(data)
    yield Fact(positions_key(segment), place, GroupUpdate(segment, command.expected_offset, end, tuple(updates)))
