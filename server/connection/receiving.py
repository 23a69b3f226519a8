"""Receives and decodes the bytes of one peer, and holds the items not executed yet, sans I/O.

Bytes come in, commands and whole appends go out, a step at a time. Bytes that are not decoded yet and items that are
not executed yet can outlive their read: `hold` and `put_back` keep them.

Invariant: items come out in the order of their bytes, up to a malformed frame and not beyond it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from segstore.server.areas import HUGE_BYTES, Areas
from segstore.wire import WireError
from segstore.wire.blocks import Append, owned

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from segstore.server.connection.deadlines import Waits
    from segstore.server.connection.service import Counters
    from segstore.server.connection.writers import Item
    from segstore.wire import Buffer, FrameDecoder
    from segstore.wire.blocks import AppendBlockDecoder

_RECEIVE_BYTES: Final = 1024 * 1024
"""Maximum size of a read."""
LONG_BYTES: Final = 256 * 1024
"""Reads of this size may stay where they were received."""
_ALIGNED_BYTES: Final = 64
_ITEM_BYTES: Final = 256
"""Approximate size of an item that is put back, without its payload."""


class ReceiveBuffers:
    """The memory for the reads of all connections: areas that are reused once no view of them is held.

    Attributes:
        view: the buffer of the next read. Its content is valid until that read, unless views of it are held.
        held_bytes: the size of the last read if a view of it is held; call `advance` before the next read.
    """

    def __init__(self) -> None:
        self._areas = Areas(HUGE_BYTES)
        self._renew()

    def _renew(self) -> None:
        self._area = self._areas.take()
        self._show(0)

    def _show(self, at: int) -> None:
        self._at, self.held_bytes = at, 0
        self.view = self._area[at : at + _RECEIVE_BYTES]

    def advance(self) -> None:
        """Leaves the last read where it is; the next one comes behind it, or in another area."""
        at = self._at + -(-self.held_bytes // _ALIGNED_BYTES) * _ALIGNED_BYTES
        if at + LONG_BYTES <= len(self._area):
            self._show(at)
        else:
            self._renew()

    def trim(self) -> None:
        """Frees memory that is not used any more."""
        self._areas.trim()


class Received:
    """Received bytes and items of one peer that its owner has not executed yet.

    Attributes:
        decoder, blocks: the decoders of frames and of append blocks; blocks is None if no appends are received.
        backlog: items to be executed first.
        at, end: range of the buffer to be decoded after them.
        problem: the error in the bytes that follow, or None.
        has_part: whether a frame or an append block is incomplete.
        step: number of commands in the last items, or in the next items from the backlog.
    """

    def __init__(
        self,
        buffers: ReceiveBuffers,
        decoder: FrameDecoder,
        blocks: AppendBlockDecoder | None,
        waits: Waits,
        now_s: Callable[[], float],
        counters: Counters,
    ) -> None:
        """buffers: receive the reads. waits: since when parts are incomplete, by the clock `now_s`. counters: for
        decoding errors.
        """
        self.decoder = decoder
        self.blocks = blocks
        self._buffers = buffers
        self._waits = waits
        self._now_s = now_s
        self._counters = counters
        self._data: Buffer = b""
        self.at = self.end = 0
        self.backlog: list[Item] = []
        self.step = 0
        self._backlog_bytes = 0
        self.problem: WireError | None = None
        self.has_part = False

    def is_pending(self) -> bool:
        """Whether items or bytes wait to be executed or refused."""
        return self.at < self.end or bool(self.backlog) or self.problem is not None

    @property
    def held_bytes(self) -> int:
        """Size of all that outlives the read, with incomplete frames and blocks."""
        held = self.decoder.buffered_bytes + self._backlog_bytes
        if self.blocks is not None and self.blocks.block_open:
            held += self.blocks.block_bytes
        if self._data and self._data is not self._buffers.view:
            held += self.end - self.at
        return held

    def read(self, size: int) -> bool:
        """Takes the bytes of a read from the shared buffer, to be executed now or held.

        Returns False, with the bytes copied, if earlier bytes are pending.
        """
        if self.at < self.end or self.backlog or self.problem is not None:
            if self.problem is None:
                more = b"".join((memoryview(self._data)[self.at : self.end], self._buffers.view[:size]))
                self._data, self.at, self.end = more, 0, len(more)
            return False
        self._data, self.at, self.end = self._buffers.view, 0, size
        return True

    def take_backlog(self) -> list[Item]:
        """The items that were put back; the caller executes them."""
        items, self.backlog, self._backlog_bytes = self.backlog, [], 0
        return items

    def decode(self, most: int) -> list[Item]:
        """Decodes at most `most` frames: items to be executed before the next call, or put back."""
        decoder, blocks, block_open = self.decoder, self.blocks, False
        items: Any
        try:
            if blocks is None:
                items = decoder.feed(self._data, self.end, self.at, most)
            else:
                items = decoder.feed(self._data, self.end, self.at, most, blocks.writers, blocks.block_open)
            self.step, self.at = decoder.taken, decoder.position
        except WireError as error:
            items, self.problem, self.at = list(error.decoded), error, self.end
            self.step = len(items)
            self._counters.malformed_frames += 1
        has_frames = bool(items)
        if blocks is not None:
            try:
                items = blocks.feed_all(items)
            except WireError as error:
                items, self.problem, self.at = list(error.decoded), error, self.end
                self._counters.protocol_violations += 1
            block_open = blocks.block_open
        partial, waits = decoder.has_part, self._waits
        if partial or block_open or self.has_part or waits.since:
            self.has_part = partial or block_open
            appends = block_open and any(type(item) in (Append, list) for item in items)
            waits.received(self._now_s(), frames=has_frames, partial=partial, block_open=block_open, appends=appends)
        return items  # type: ignore[no-any-return]  # of items only

    def put_back(self, items: Sequence[Item]) -> None:
        """Holds items for later, with payloads of their own if they lie in the shared buffer."""
        self.step = len(items)
        if self._data is not self._buffers.view:
            self.backlog, self._backlog_bytes = list(items), len(items) * _ITEM_BYTES
            return
        for item in items:
            item, size = owned(item)
            self.backlog.append(item)
            self._backlog_bytes += size + _ITEM_BYTES

    def hold(self) -> None:
        """Holds a copy of the bytes of the last read, because the next read reuses the shared buffer."""
        self._data = bytes(self._buffers.view[self.at : self.end])
        self.at, self.end = 0, len(self._data)

    def finish(self) -> bool:
        """Releases the buffer if everything was executed; returns whether it was."""
        if self.at < self.end or self.backlog or self.problem is not None:
            return False
        self._data = b""
        return True

    def release(self) -> None:
        """Releases the buffer: all of it was executed or dropped."""
        self._data = b""

    def drop(self) -> None:
        """Drops everything, incomplete frames and blocks too: nothing more is received."""
        self.release()
        self.decoder.drop_part()
        if self.blocks is not None:
            self.blocks.drop_block()
        self.has_part = False
        self.at = self.end = 0
        self.problem = None
        self.backlog, self._backlog_bytes = [], 0
