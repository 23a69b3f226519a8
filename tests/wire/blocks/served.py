"""What a server's connection makes of the bytes that it receives: it decodes in steps, whole appends in runs."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

from segstore.wire import FrameDecoder, WireError
from segstore.wire.blocks import WHOLE_APPENDS, Append, AppendBlockDecoder, one_by_one

if TYPE_CHECKING:
    from collections.abc import Iterable

    from segstore.wire.codec import Codec

__all__ = ["served"]


def served(
    stream: bytes,
    blocks: AppendBlockDecoder,
    *,
    codec: Codec | None = None,
    runs: bool = True,
    cuts: Iterable[int] = (),
    view: bool = False,
    most: int = 256,
    limit: int = 0x00FF_FFFF,
) -> list[Any]:
    """Returns commands and appends in order, payloads copied; then what the error that ends it says, or what is
    incomplete; then the writers' last numbers.

    cuts: where the reads end. runs: whether whole appends may come as runs.
    """
    decoder = FrameDecoder(codec=codec, joined=WHOLE_APPENDS if runs else None, max_frame_bytes=limit)
    out: list[Any] = []
    ended: Any = None
    places = sorted({0, len(stream), *(cut % (len(stream) + 1) for cut in cuts)})
    for start, stop in pairwise(places):
        piece, at = bytearray(stream[start:stop]), 0
        while at < len(piece) and ended is None:
            data = memoryview(piece) if view else piece
            try:
                items: Any = decoder.feed(data, start=at, most=most, records=blocks.writers, changed=blocks.block_open)
                at = decoder.position
            except WireError as error:
                items, ended = error.decoded, error
            try:
                items = blocks.feed_all(items)
            except WireError as error:
                items, ended = error.decoded, error
            out += map(_copied, one_by_one(items))
    if ended is None:
        out.append((blocks.block_open, blocks.block_bytes, decoder.buffered_bytes))
    else:
        out.append((type(ended), str(ended), ended.facts()))
    return [*out, *(writer.last_event_number for writer in blocks.writers.values())]


def _copied(item: Any) -> object:
    if isinstance(item, Append):
        return item.segment, item.writer_id, item.event_number, item.event_count, bytes(item.data), item.request_id
    return type(item), item.to_dict()
