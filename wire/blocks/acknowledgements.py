"""Acknowledgements of the appends of a run.

Source: `AppendProcessor.storeAppend`. The store here answers at once, so the offset is the end of the append.
"""

from collections.abc import Callable, Sequence
from uuid import UUID

from segstore.wire.blocks.decoder import Row
from segstore.wire.codec import ACCELERATOR, WIRE_VERSION, Acknowledged, encoder
from segstore.wire.commands import DataAppended

Acknowledge = Callable[[Sequence[Row], bytes, int, int, bytearray], int]


def acknowledger(version: int) -> Acknowledge:
    """Returns `acknowledge(rows, writer, previous, offset, out)`, which adds a DataAppended of a wire version to `out`
    for each row whose number rises, and returns the last of these numbers.

    writer: the 16 bytes of its id. previous: the number acknowledged last. offset: where the first append was stored.
    """
    if version == WIRE_VERSION and ACCELERATOR is not None:
        return ACCELERATOR.acknowledger(_DATA_APPENDED)
    encode = encoder(version)

    def acknowledge(rows: Sequence[Row], writer: bytes, previous: int, offset: int, out: bytearray) -> int:
        writer_id, frames = UUID(bytes=writer), []
        for number, _, data, request_id in rows:
            offset += len(data)
            if previous < number:
                frames.append(encode(DataAppended(request_id, writer_id, number, previous, offset)))
                previous = number
        out += b"".join(frames)
        return previous

    return acknowledge


_DATA_APPENDED = Acknowledged(
    DataAppended,
    key="writer_id",
    number="event_number",
    before="previous_event_number",
    total="current_segment_write_offset",
    row=("event_number", "count", "data", "request_id"),
)
