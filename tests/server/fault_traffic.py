"""What tests of faults send to a store, with a tap before it or not, and what they look at then."""

from __future__ import annotations

from segstore.server import MockSegmentStore
from segstore.wire import DataAppended, KeepAlive
from tests.server.support import SEGMENT

__all__ = ["APPENDS", "PONG", "acknowledged", "stored"]

APPENDS = "type = APPEND_BLOCK_END"
PONG = KeepAlive()


def stored(mock: MockSegmentStore) -> int:
    """How long the segment is."""
    return mock.segments[SEGMENT].length


def acknowledged(replies: list[object]) -> list[int]:
    """The numbers of the appends that were."""
    return [each.event_number for each in replies if isinstance(each, DataAppended)]
