"""The writers that a connection has set up, and which of its appends are stored together.

Invariant: `last_acknowledged` is never above `last_stored`; both only rise until the writer is set up again.

Source: `WriterState`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final
from uuid import UUID

from segstore.wire import Command
from segstore.wire.blocks import Append
from segstore.wire.codec import acknowledgement_head

if TYPE_CHECKING:
    from segstore.server.connection.writer_counts import WriterCount
    from segstore.server.store import Container, Segment
    from segstore.wire.blocks import Taken

WRITER_BYTES: Final = 400
"""What a writer that was set up takes, roughly."""

_MAX_RUN: Final = 512
"""Appends that are stored before their acknowledgements are made."""


class SetUpWriter:
    """A writer that was set up for a segment.

    Attributes:
        container: where the segment lies.
        last_stored, last_acknowledged: the numbers of the events that it sent and that was acknowledged last.
        count: what it appends is counted there; None if nobody asks.
        writer_id, id_bytes: the writer's id.
        ack_head: with what its acknowledgements begin.
        segment, taken: the segment, and what the block decoder has of the writer, once they were looked up.
    """

    __slots__ = (
        "ack_head",
        "container",
        "count",
        "id_bytes",
        "last_acknowledged",
        "last_stored",
        "segment",
        "taken",
        "writer_id",
    )

    def __init__(
        self, writer_id: UUID, container: Container, last_event_number: int, count: WriterCount | None
    ) -> None:
        self.writer_id = writer_id
        self.id_bytes = writer_id.bytes
        self.ack_head = acknowledgement_head(self.id_bytes)
        self.segment: Segment | None = None
        self.taken: Taken | None = None
        self.container = container
        self.count = count
        self.last_stored = last_event_number
        self.last_acknowledged = last_event_number


def run_of(items: Sequence[Command | Append], start: int) -> list[Append]:
    """The appends from `start` on that go one after another to one segment, from one writer, without a condition."""
    first = items[start]
    assert type(first) is Append
    segment, writer_id, number = first.segment, first.writer_id, first.event_number
    run = [first]
    for index in range(start + 1, min(len(items), start + _MAX_RUN)):
        item = items[index]
        if (
            type(item) is not Append
            or item.writer_id is not writer_id
            or item.segment is not segment
            or item.expected_offset is not None
            or item.event_number < number
        ):
            break
        number = item.event_number
        run.append(item)
    return run
