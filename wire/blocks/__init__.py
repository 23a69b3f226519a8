"""Append blocks: encodes a writer's appends into frames, and decodes the frames into appends again.

An append block is a frame whose body holds many appends, followed by a block end that gives the number of bytes in
whole events, the number of events, and the last event number. A writer can thus send appends before it knows how many
there will be. An append that crosses the end of the block is split: its first bytes travel as a PartialEvent inside the
block, the rest in the block end.

`AppendBlockEncoder` is the client's side of a connection, `AppendBlockDecoder` the server's. Both are pure state: bytes
and time come in as arguments, bytes and appends are returned. Invariant: the decoder returns every append that the
encoder took, in order for each writer; several appends of a writer may come back as one append, with joined bytes, the
sum of the counts and the last number.

Buffers: the encoder keeps and returns the caller's payloads without copying, so they must not change until the returned
list that holds them has been written. The decoder's `Append.data` is a view into the frame if the append is contiguous
there, and is then valid as long as the frame: with a `FrameDecoder`, until its next `feed`. Data that must outlive a
call is copied.

Refused: the encoder refuses appends that no decoder would accept (without a set-up, with numbers that do not increase,
counts below 1, frames above the limit) and keeps its state unchanged. The decoder raises `AppendViolation` and drops
the open block; a server then closes the connection.

Follows `CommandEncoder`, `AppendDecoder` and `AppendBatchSizeTrackerImpl`; the modules of this package name their
differences.
"""

from segstore.wire.blocks.decoder import (
    WHOLE_APPENDS,
    Append,
    AppendBlockDecoder,
    BlockWriter,
    Row,
    Run,
    acknowledger,
    one_by_one,
)
from segstore.wire.blocks.encoder import BLOCK_BYTES, MAX_PENDING_BYTES, AppendBlockEncoder, frames_of_append
from segstore.wire.blocks.events import EVENT_HEADER_BYTES, frame_header, framed, split_events
from segstore.wire.blocks.owned import owned
from segstore.wire.blocks.rules import AppendRule, AppendViolation
from segstore.wire.blocks.size import BATCH_MS, MAX_BLOCK_BYTES, BlockSizeTracker

__all__ = [
    "BATCH_MS",
    "BLOCK_BYTES",
    "EVENT_HEADER_BYTES",
    "MAX_BLOCK_BYTES",
    "MAX_PENDING_BYTES",
    "WHOLE_APPENDS",
    "Append",
    "AppendBlockDecoder",
    "AppendBlockEncoder",
    "AppendRule",
    "AppendViolation",
    "BlockSizeTracker",
    "BlockWriter",
    "Row",
    "Run",
    "acknowledger",
    "frame_header",
    "framed",
    "frames_of_append",
    "one_by_one",
    "owned",
    "split_events",
]
