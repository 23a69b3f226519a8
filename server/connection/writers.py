"""The writers that a connection has set up, and which of its appends are stored together.

A writer is one record: the block decoder makes it when a set-up is decoded, the session makes it ready when the set-up
is executed, and every append goes through it.

Source: `WriterState`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, cast
from uuid import UUID

from segstore.server.store import AppendItem
from segstore.wire import Command
from segstore.wire.blocks import Append, BlockWriter

if TYPE_CHECKING:
    from segstore.server.connection.writer_counts import WriterCount
    from segstore.server.store import Container
    from segstore.wire.codec import AppendRows

WRITER_BYTES: Final = 400
"""What a writer that was set up takes, roughly."""

_MAX_RUN: Final = 512
"""Appends that are stored before their acknowledgements are made."""


class Writer(BlockWriter):
    """A writer of one segment on one connection.

    Attributes:
        id_bytes: the bytes of its id.
        is_set_up: whether the session takes appends from it; the others are set only then.
        container: where the segment lies.
        last_stored: the last event number that was stored, and acknowledged.
        count: the counter of its appends; None if they are not counted.
    """

    __slots__ = ("container", "count", "id_bytes", "is_set_up", "last_stored")

    def __init__(self, segment: str, writer_id: UUID) -> None:
        super().__init__(segment, writer_id)
        self.id_bytes = writer_id.bytes
        self.is_set_up = False

    def set_up(self, container: Container, last_stored: int, count: WriterCount | None) -> None:
        """The segment's store knows the writer, with `last_stored` as its last number."""
        self.container = container
        self.last_stored = last_stored
        self.count = count
        self.is_set_up = True


Run = tuple[Writer, list[AppendItem]]
"""Appends of one writer that follow each other."""


def run_of(items: Sequence[Command | Append], start: int) -> Sequence[Append]:
    """The append at `start`, and those behind it that are of the same writer; a conditional append is alone."""
    first = items[start]
    assert type(first) is Append
    segment, writer_id, number = first.segment, first.writer_id, first.event_number
    end = start + 1
    last = end if first.expected_offset is not None else min(len(items), start + _MAX_RUN)
    while end < last:
        item = items[end]
        if (
            type(item) is not Append
            or item.writer_id is not writer_id
            or item.segment is not segment
            or item.expected_offset is not None
            or item.event_number < number
        ):
            break
        number = item.event_number
        end += 1
    return cast("Sequence[Append]", items[start:end])


def runs_of(appends: AppendRows, writers: Mapping[bytes, Writer]) -> Iterator[Run]:
    """Whole appends as runs, up to the first that is not simply the next one of a writer that is set up.

    `last_event_number` of a writer is that of its last append that was taken, as if the block decoder had decoded it.
    """
    header, end_header, sizes = appends.same
    writer: Writer | None = None
    rows: list[AppendItem] = []
    for head, id_bytes, data, end_head, end_id, measured, events, number, request_id in appends.rows:
        if head != header or end_head != end_header or end_id != id_bytes or measured != sizes or events <= 0:
            break
        if writer is not None and id_bytes == writer.id_bytes:
            if number < writer.last_event_number:
                break
            rows.append((number, events, data, request_id))
        else:
            if writer is not None:
                yield writer, rows
            writer = writers.get(id_bytes)
            if (
                writer is None
                or not writer.is_set_up
                or number < writer.last_event_number
                or number < writer.last_stored
            ):
                return
            rows = [(number, events, data, request_id)]
        writer.last_event_number = number
    if writer is not None:
        yield writer, rows
