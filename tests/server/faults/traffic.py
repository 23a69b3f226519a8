"""Traffic for tests of faults, to a store directly or through a tap, and how to look at its effect."""

from __future__ import annotations

from segstore.server import MockSegmentStore
from segstore.wire import DataAppended, KeepAlive
from tests.server.support import SEGMENT

__all__ = ["APPENDS", "PONG", "acknowledged", "stored"]

APPENDS = "type = APPEND_BLOCK_END"
PONG = KeepAlive()


def stored(mock: MockSegmentStore) -> int:
    """The length of the segment."""
    return mock.segments[SEGMENT].length


def acknowledged(replies: list[object]) -> list[int]:
    """The event numbers of the acknowledged appends."""
    return [each.event_number for each in replies if isinstance(each, DataAppended)]
