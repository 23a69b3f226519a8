"""The frame decoder: splits a stream of bytes, in any chunking, into frames and decodes them.

Invariants: a frame's announced length is checked as soon as its header is complete, before any of its body is kept; at
most one incomplete frame is held, in memory that grows with the bytes that came and not with the length announced; the
commands of a call are all decoded before the error that follows them, and travel on it (`WireError.decoded`). After an
error the decoder refuses to continue: frame boundaries are lost, and the reference closes the connection.

No I/O here. Source: `CommandDecoder`, netty's `LengthFieldBasedFrameDecoder` as `PravegaConnectionListener` sets it.
"""

from __future__ import annotations

import struct
from copy import copy
from functools import cache, lru_cache
from itertools import repeat
from math import inf
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from segstore.wire.codec.codec import DEFAULT_CODEC, HEADER_BYTES, decode_body, decoders_of
from segstore.wire.codec.generate import Joined, compiler
from segstore.wire.commands import AppendBlock, AppendBlockEnd, DataAppended, ReadSegment, SegmentRead
from segstore.wire.errors import FrameTooLarge, WireError
from segstore.wire.schema import COMMANDS, MAX_FRAME_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from segstore.wire.codec.codec import Codec, Decoders, UnknownPolicy
    from segstore.wire.schema import Buffer, Command

_read_header = struct.Struct(">ii").unpack_from


OFTEN: Final[tuple[type[Command], ...]] = (AppendBlock, AppendBlockEnd, DataAppended, SegmentRead, ReadSegment)
"""The commands that make up the traffic of a store: decoded in the loop that finds the frames."""

_HEAVY_BYTES: Final = 4096
"""Decoding a longer frame may take a millisecond, unless it is mostly payload."""


class WholeAppend(AppendBlockEnd, frozen=True, gc=False):
    """An AppendBlock and the AppendBlockEnd right behind it, as one: the end, with the block as its data.

    The block was all whole events and no more, the end had no data: so the two say what this says, which is how nearly
    all appends travel. Only where asked for; `segstore.wire.blocks` takes it as the two that it stands for.
    """


_JOINED: Final = Joined(AppendBlock, AppendBlockEnd, WholeAppend, alike="writer_id", sized="size_of_whole_events")
_row_layout = lru_cache(maxsize=1024)(_JOINED.layout)
_ROW_BYTES: Final = 4096
"""Data of more bytes is better viewed than copied, so it is in no row."""

_NO_DATA_BYTES: Final = _row_layout(0)[0].size
_WRITER_BYTES: Final = 16
_END_BYTES: Final = _NO_DATA_BYTES - 2 * HEADER_BYTES - _WRITER_BYTES


class AppendRows(NamedTuple):
    """Frames of whole appends as rows, each of `size` bytes. One is a whole append if it has what is the same in all of
    them, and the writer's id twice.

    same: the block's header, the end's header, the end's two sizes.
    rows: the block's header, the writer's id, the data, the end's header, its writer's id, its sizes, how many events,
    the number of the last, the request id.
    """

    size: int
    same: tuple[bytes, ...]
    rows: Iterator[tuple[bytes, bytes, bytes, bytes, bytes, bytes, int, int, int]]


@cache
def _loop(
    codec: Codec, view: bool = False, join_appends: bool = False, acks_in_rows: bool = False
) -> Callable[..., int]:
    if codec != "generated":
        return _frames
    joined = _JOINED if join_appends else None
    return compiler.make_frames(OFTEN, joined=joined, in_rows=DataAppended if acks_in_rows else None, view=view)


def _frames(
    buffer: Buffer,
    view: memoryview,
    start: int,
    end: int,
    limit: int,
    _decoders: Decoders,
    slow: Callable[..., Command],
    out: list[Command],
    times: Iterable[None],
    heavy: float,
) -> int:
    """The generated loop's equivalent for codecs without code generation."""
    for _ in times:
        if end - start < HEADER_BYTES:
            break
        code, length = _read_header(buffer, start)
        stop = start + HEADER_BYTES + length
        if not 0 <= length <= limit or stop > end:
            break
        out.append(slow(buffer, view, code, start + HEADER_BYTES, stop))
        start, size = stop, stop - start
        if size > heavy:
            break
    return start


class FrameDecoder:
    """Decodes the frames of one direction of one connection.

    max_frame_bytes: longest frame accepted, header included.
    unknown: "keep" yields `Unknown` for type codes that no command has, "refuse" raises UnknownCommand.
    join_appends: an append of two frames may come as one `WholeAppend`, for callers that do not need the frames.
    most_elements: the maximum number of elements of a list, such as the keys of a table update; None for as many as a
        frame holds.
    acks_in_rows: DataAppended that follow each other may come as `Rows`, valid until the next feed.

    Attributes:
        position: where the last feed stopped in its bytes; before their end only if `most` was given.
    """

    __slots__ = (
        "_acks_in_rows",
        "_codec",
        "_decoders",
        "_failed",
        "_frames",
        "_join_appends",
        "_max_body",
        "_need",
        "_pending",
        "_unknown",
        "_view_decoders",
        "max_frame_bytes",
        "position",
    )

    def __init__(
        self,
        *,
        max_frame_bytes: int = MAX_FRAME_BYTES,
        unknown: UnknownPolicy = "refuse",
        codec: Codec | None = None,
        join_appends: bool = False,
        acks_in_rows: bool = False,
        most_elements: int | None = None,
    ) -> None:
        self.max_frame_bytes = max_frame_bytes
        self._max_body = max_frame_bytes - HEADER_BYTES
        self._unknown: UnknownPolicy = unknown
        self._codec: Codec = codec or DEFAULT_CODEC
        self._join_appends = join_appends
        self._acks_in_rows = acks_in_rows
        self._frames = _loop(self._codec, False, join_appends, acks_in_rows)
        self._decoders, self._view_decoders = decoders_of(self._codec, most_elements)
        self._pending = bytearray()
        self._need = HEADER_BYTES  # bytes that `pending` must reach before there is anything to do
        self._failed: WireError | None = None
        self.position = 0

    @property
    def buffered_bytes(self) -> int:
        """Bytes of the incomplete frame that is held."""
        return len(self._pending)

    def append_rows(self, data: memoryview) -> AppendRows | None:
        """The next bytes as rows of the size of the append that they begin with. The caller may use the first ones that
        are whole appends, and then feeds the rest. None if there is no append, or if appends do not come joined.
        """
        if self._pending or not self._join_appends or self._failed is not None or len(data) < _NO_DATA_BYTES:
            return None
        code, length = _read_header(data)
        size = length - _WRITER_BYTES
        if code != AppendBlock.code or not 0 <= size <= _ROW_BYTES or not _END_BYTES <= self._max_body >= length:
            return None
        layout, same = _row_layout(size)
        return AppendRows(layout.size, same, layout.iter_unpack(data[: len(data) // layout.size * layout.size]))

    def feed(self, data: Buffer, size: int | None = None, start: int = 0, *, most: int | None = None) -> list[Command]:
        """Takes the next bytes (of `data` from `start` to `size`, or all), returns the commands that they complete.

        With `most`, it stops after that many commands, or after one that took long to decode; the caller continues with
        the bytes at `position`.
        Payloads of these are views of `data` or of the decoder's own memory: they are valid until the next feed, and
        the caller keeps `data` unchanged until then. Raises WireError, with the commands before the bad frame in
        `decoded`; and an equal error, without them, on every call after that.
        """
        if self._failed is not None:
            raise copy(self._failed)
        out: list[Any] = []  # may contain rows, which are not commands
        frames, decoders = self._frames, self._decoders
        view = memoryview(data)
        if type(data) is memoryview:
            if view.format != "B" or not view.c_contiguous or view.ndim != 1:
                view = view.cast("B")
            data = view
            frames = _loop(self._codec, True, self._join_appends, self._acks_in_rows)
            decoders = self._view_decoders
        self.position = end = view.nbytes if size is None else size
        try:
            while self._pending and start < end:
                start = self._complete(view, start, end, out)
            if start < end:
                few = most is not None
                times = repeat(None, most - len(out)) if most is not None else repeat(None)
                heavy = _HEAVY_BYTES if few else inf
                stop = frames(data, view, start, end, self._max_body, decoders, self._decode, out, times, heavy)
                if stop < end:
                    if few and self._is_whole(view, stop, end):
                        self.position = stop
                    else:
                        self._keep(view, stop, end)
        except WireError as error:
            self._failed = copy(error)  # without the traceback, which would keep `data` and all that was decoded
            error.decoded = out
            self._pending = bytearray()
            raise
        return out

    def _is_whole(self, view: memoryview, start: int, end: int) -> bool:
        """Whether a complete frame begins there."""
        if end - start < HEADER_BYTES:
            return False
        length: int = _read_header(view, start)[1]
        return 0 <= length <= min(self._max_body, end - start - HEADER_BYTES)

    def _keep(self, view: memoryview, start: int, end: int) -> None:
        """Keeps the beginning of a frame, or refuses its length."""
        if end - start >= HEADER_BYTES:
            code, length = _read_header(view, start)
            if not 0 <= length <= self._max_body:
                raise self._too_large(code, length)
            self._need = HEADER_BYTES + length
        self._pending += view[start:end]

    def _decode(self, buffer: Buffer, view: memoryview, code: int, start: int, end: int) -> Command:
        decoders = self._view_decoders if type(buffer) is memoryview else self._decoders
        return decode_body(decoders, buffer, view, code, start, end, self._unknown)

    def _complete(self, view: memoryview, start: int, end: int, out: list[Command]) -> int:
        """Moves bytes to the incomplete frame and decodes it when it is whole; returns where its bytes end."""
        pending = self._pending
        stop = min(end, start + self._need - len(pending))
        pending += view[start:stop]
        if len(pending) == self._need:
            code, length = _read_header(pending)
            if not 0 <= length <= self._max_body:
                raise self._too_large(code, length)
            self._need = HEADER_BYTES + length
            if len(pending) == self._need:
                self._pending = bytearray()  # what is decoded now may view the old one
                self._need = HEADER_BYTES
                out.append(self._decode(pending, memoryview(pending), code, HEADER_BYTES, len(pending)))
        return stop

    def _too_large(self, code: int, length: int) -> FrameTooLarge:
        # The reference reads the length as unsigned: a negative one is a very long frame.
        size = length % (1 << 32) + HEADER_BYTES
        return FrameTooLarge(
            f"a frame of {size} bytes exceeds the {self.max_frame_bytes} that one may have",
            code=code,
            type_name=COMMANDS[code].type_name if code in COMMANDS else None,
            field="length",
            offset=4,
            limit=self.max_frame_bytes,
            actual=size,
        )
