"""Append blocks: encodes a writer's appends into frames, and decodes the frames into appends again.

An append block is a frame whose body is many appends, followed by an end that tells how many of its bytes are whole
events, how many events there are and the number of the last. A writer can so send appends before it knows how many
there will be. An append that crosses the end of the block is cut: its first bytes travel as a PartialEvent inside the
block, the others in the end.

`AppendBlockEncoder` is a client's side of a connection, `AppendBlockDecoder` a server's. Both are pure state: bytes and
time come in as arguments, bytes and appends go out. Invariant: what the decoder gives back is every append that the
encoder took, each writer's in order; several appends of a writer may come back as one with their bytes joined, their
counts added and the last number.

Buffers. The encoder keeps and returns the caller's payloads without copying them: they must not change until the
returned list that holds them has been written. The decoder's `Append.data` is a view into the frame wherever the append
lies there in one piece, and then lives as long as that frame: with a `FrameDecoder`, until its next `feed`. What has to
outlive a call is copied here.

Refused: the encoder refuses what no decoder would accept (appends without a set-up, numbers that do not rise, counts
below 1, frames beyond the limit) and leaves its state as it was. The decoder raises `AppendViolation` and drops the
open block; a server closes the connection then.

Follows `CommandEncoder`, `AppendDecoder` and `AppendBatchSizeTrackerImpl`; the modules behind this one name their
differences.
"""

from segstore.wire.blocks.decoder import (
    Append,
    AppendBlockDecoder,
    Taken,
)
from segstore.wire.blocks.encoder import (
    MAX_PENDING_BYTES,
    MAX_PENDING_EVENTS,
    AppendBlockEncoder,
)
from segstore.wire.blocks.rules import (
    AppendRule,
    AppendViolation,
)
from segstore.wire.blocks.size import (
    BATCH_MS,
    MAX_BLOCK_BYTES,
    BlockSizeTracker,
    BlockSizing,
    FixedBlockSize,
)

__all__ = [
    "BATCH_MS",
    "MAX_BLOCK_BYTES",
    "MAX_PENDING_BYTES",
    "MAX_PENDING_EVENTS",
    "Append",
    "AppendBlockDecoder",
    "AppendBlockEncoder",
    "AppendRule",
    "AppendViolation",
    "BlockSizeTracker",
    "BlockSizing",
    "FixedBlockSize",
    "Taken",
]
