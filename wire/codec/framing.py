"""The frame decoder: splits a stream of bytes, in any chunking, into frames and decodes them.

Invariants: a frame's announced length is checked as soon as its header is complete, before its body is kept; at most
one incomplete frame is held, in memory that grows with the received bytes, not with the announced length, or in a
`FrameMemory`, whose areas are bounded; an error carries the commands that the same call decoded before it
(`WireError.decoded`). After an error the decoder refuses to continue: frame boundaries are lost, and the reference
closes the connection.

No I/O here. Source: `CommandDecoder`, netty's `LengthFieldBasedFrameDecoder` as `PravegaConnectionListener` sets it.
"""

from __future__ import annotations

import struct
import sys
from collections import deque
from copy import copy
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final

from segstore.wire.codec.codec import DEFAULT_CODEC, HEADER_BYTES, SPEED, checked_codec, decode_body
from segstore.wire.codec.joining import joining_of
from segstore.wire.commands import AppendBlock, AppendBlockEnd, DataAppended
from segstore.wire.errors import FrameTooLarge, WireError
from segstore.wire.schema import COMMANDS, MAX_FRAME_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from segstore.wire.codec.codec import Codec, UnknownPolicy
    from segstore.wire.codec.joining import Joined, Joining
    from segstore.wire.schema import Buffer, Command

_read_header = struct.Struct(">ii").unpack_from

_LIGHT: Final = frozenset(cls.code for cls in (AppendBlock, AppendBlockEnd, DataAppended))
"""Codes of frequent commands whose decoding takes no time, however long they are."""

_HEAVY_BYTES: Final = 4096
"""Decoding a longer frame may take a millisecond, unless it is mostly payload."""

_MOST_AREAS: Final = 8
_AREA_BYTES: Final = 64 * 1024
_LONGEST_AREA_BYTES: Final = 2 * 1024 * 1024 + 128 * 1024
"""The longest reply to a read has 2 MiB of data and a segment name of up to 64 KiB."""


def frames_of(
    joining: Joining | None,
    view: memoryview,
    start: int,
    end: int,
    limit: int,
    decode: Callable[[memoryview, int, int, int], Command] | None,
    out: list[Any],
    most: int,
    heavy: int,
    records: Mapping[bytes, Any] | None,
    changed: bool,
) -> tuple[int, int]:
    """Decodes frames in order; returns where it stopped, and the number of frames, a whole append counted as one frame.

    It appends to `out` the command of every whole frame between `start` and `end`, and lists of runs. It stops before
    an incomplete frame, before a frame whose body is longer than `limit`, after `most` frames, after a frame of more
    than `heavy` bytes that took long to decode, and without `decode` before a frame that is in no run. joining: joins
    whole appends to runs; None for no runs. records, changed: as for `FrameDecoder.feed`.
    """
    block, changes = (None, ()) if joining is None or records is None else (joining.block, joining.changes)
    taken = 0
    while taken < most and end - start >= HEADER_BYTES:
        code, length = _read_header(view, start)
        stop = start + HEADER_BYTES + length
        if not 0 <= length <= limit or stop > end:
            break
        if code == block and joining is not None:
            if changed and out:
                break
            start, count = (start, 0) if changed else joining.take(view, start, end, limit, records, out, most - taken)
            if count:
                taken += count
                continue
        if decode is None:
            break
        changed = changed or code in changes
        out.append(decode(view, code, start + HEADER_BYTES, stop))
        start, size, taken = stop, stop - start, taken + 1
        if size > heavy and code not in _LIGHT:
            break
    return start, taken


@cache
def _loop(
    codec: Codec, joined: Joined | None, acks_in_rows: bool, most_elements: int | None
) -> Callable[..., tuple[int, int]]:
    if codec != "c" or SPEED is None:
        return partial(frames_of, None if joined is None else joining_of(joined))
    return SPEED.frames(
        _LIGHT, joined=joined, in_rows=DataAppended if acks_in_rows else None, most_elements=most_elements
    )


def runs_at(
    view: memoryview, start: int, *, joined: Joined | None, records: Mapping[bytes, Any] | None
) -> tuple[list[Any], int]:
    """Decodes consecutive appends or acknowledgements from `start` on; returns them, and where they end.

    joined, records: the appends of these records, as one list of runs; None for acknowledgements, as `Rows`, which only
    the extension makes.
    """
    out: list[Any] = []
    loop, limit = _loop(DEFAULT_CODEC, joined, joined is None, None), MAX_FRAME_BYTES - HEADER_BYTES
    start, _ = loop(view, start, view.nbytes, limit, None, out, sys.maxsize, sys.maxsize, records, False)
    return out, start


class FrameMemory:
    """Memory in which decoders receive long frames without a copy: at most 8 areas of at most 2.1 MiB, and older areas
    in use. Reused, so that its pages are mapped once, but only when no view of it is left; callers release nothing.

    longer_than: shorter frames get no area.
    """

    def __init__(self, longer_than: int) -> None:
        self._longer_than = longer_than
        self._areas: deque[bytearray] = deque(maxlen=_MOST_AREAS)

    def take(self, size: int) -> memoryview | None:
        """Returns a view of `size` bytes of arbitrary content; None if a frame of this size is short or too long."""
        if not self._longer_than < size <= _LONGEST_AREA_BYTES:
            return None
        for memory in self._areas:
            if len(memory) >= size and not _has_views(memory):
                break
        else:
            memory = bytearray(-(-size // _AREA_BYTES) * _AREA_BYTES)
            self._areas.append(memory)
        return memoryview(memory)[:size]


def _has_views(memory: bytearray) -> bool:
    """Whether a view is held: a `bytearray` counts its exports, and refuses to change its size while there are any.
    Nothing is reallocated, because the size stays within the allocation.
    """
    try:
        memory.append(memory.pop())
    except BufferError:
        return True
    return False


class FrameDecoder:
    """Decodes the frames of one direction of one connection.

    max_frame_bytes: longest frame accepted, header included.
    unknown: "keep" yields `Unknown` for type codes that no command has, "refuse" raises UnknownCommand.
    joined: whole appends may come as runs of rows, where `feed` is given records.
    most_elements: the maximum number of elements of a list, such as the keys of a table update; None for as many as a
        frame holds.
    acks_in_rows: consecutive DataAppended may come as `FrameRows`, valid until the next feed.
    memory: where incomplete long frames are held.

    Attributes:
        room: memory for the rest of an incomplete long frame, or None. Bytes received there are fed as this view and
            not copied.
        has_part: whether a frame is incomplete.
        position: where the last feed stopped in its bytes; before their end only if `most` or `records` was given.
        taken: number of frames that the last feed took, a whole append counted as one frame.
    """

    def __init__(
        self,
        *,
        max_frame_bytes: int = MAX_FRAME_BYTES,
        unknown: UnknownPolicy = "refuse",
        codec: Codec | None = None,
        joined: Joined | None = None,
        acks_in_rows: bool = False,
        most_elements: int | None = None,
        memory: FrameMemory | None = None,
    ) -> None:
        self.max_frame_bytes = max_frame_bytes
        self._max_body = max_frame_bytes - HEADER_BYTES
        self._unknown: UnknownPolicy = unknown
        self._codec = DEFAULT_CODEC if codec is None else checked_codec(codec)
        self._most_elements = most_elements
        self._frames = _loop(self._codec, joined, acks_in_rows, most_elements)
        self._pending = bytearray()
        self._need = HEADER_BYTES  # bytes that `pending` must reach before there is anything to do
        self._memory = memory
        self._long = memoryview(b"")  # the long frame that `room` is the end of
        self.room: memoryview | None = None
        self._failed: WireError | None = None
        self.has_part = False
        self.position = self.taken = 0

    @property
    def buffered_bytes(self) -> int:
        """Bytes of the incomplete frame that is held."""
        return len(self._pending) if self.room is None else len(self._long) - len(self.room)

    def feed(
        self,
        data: Buffer,
        size: int | None = None,
        start: int = 0,
        most: int | None = None,
        records: Mapping[bytes, Any] | None = None,
        changed: bool = False,
    ) -> list[Command]:
        """Takes the next bytes (of `data` from `start` to `size`, or all), returns the commands that they complete.

        With `most`, it stops after that many commands, or after a command that took long to decode; the caller
        continues with the bytes at `position`. With `records`, whole appends of these may come as lists of (record,
        rows); it stops before such appends once a command may have changed a record. changed: whether the records are
        out of date now. Payloads of these are views of `data`, which the caller keeps unchanged until the next feed, or
        of memory that does not change while they are held. Raises WireError, with the commands before the bad frame in
        `decoded`; and an equal error, without them, on every call after that.
        """
        if self._failed is not None:
            raise copy(self._failed)
        out: list[Any] = []  # may contain rows and runs, which are not commands
        view = memoryview(data)
        if type(data) is memoryview and (view.format != "B" or not view.c_contiguous or view.ndim != 1):
            view = view.cast("B")
        self.position = end = view.nbytes if size is None else size
        try:
            if self.has_part:
                start, changed = self._take_part(view, start, end, out, in_place=data is self.room), True
            few, heavy = (sys.maxsize, sys.maxsize) if most is None else (most - len(out), _HEAVY_BYTES)
            self.taken = len(out)
            if start < end:
                stop, taken = self._frames(
                    view, start, end, self._max_body, self._decode, out, few, heavy, records, changed
                )
                self.taken += taken
                if stop < end:
                    is_bounded = most is not None or records is not None
                    if is_bounded and self._is_whole(view, stop, end):
                        self.position = stop
                    else:
                        self._keep(view, stop, end)
        except WireError as error:
            error.decoded, last = (), error.decoded  # a strict decoder of an older version refuses behind a command
            self._failed = copy(error)  # without the traceback, which would keep `data` and all that was decoded
            error.decoded = [*out, *last]
            self.drop_part()
            raise
        return out

    def drop_part(self) -> None:
        """Drops the incomplete frame, after the last feed."""
        self._pending, self._long, self.room = bytearray(), memoryview(b""), None
        self.has_part = False

    def _take_part(self, view: memoryview, start: int, end: int, out: list[Any], *, in_place: bool) -> int:
        """Adds bytes to the incomplete frame until it is whole; returns where they end."""
        while self.has_part and start < end:
            if self.room is None:
                start = self._complete(view, start, end, out)
            else:
                start = self._fill(self.room, view, start, end, out, in_place=in_place)
            self.has_part = bool(self._pending) or self.room is not None
        return start

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
        self._hold(view[start:end])

    def _hold(self, part: Buffer) -> None:
        """Holds the beginning of a frame of `_need` bytes."""
        frame = None if self._memory is None else self._memory.take(self._need)
        self.has_part = True
        if frame is None:
            self._pending += part
        else:
            frame[: len(part)] = part
            self._long, self.room = frame, frame[len(part) :]

    def _decode(self, view: memoryview, code: int, start: int, end: int) -> Command:
        return decode_body(view, code, start, end, self._unknown, self._codec, self._most_elements)

    def _complete(self, view: memoryview, start: int, end: int, out: list[Any]) -> int:
        """Copies bytes to the incomplete frame and decodes it when it is whole; returns where its bytes end."""
        pending = self._pending
        stop = min(end, start + self._need - len(pending))
        pending += view[start:stop]
        if len(pending) == self._need:
            code, length = _read_header(pending)
            if not 0 <= length <= self._max_body:
                raise self._too_large(code, length)
            self._need = HEADER_BYTES + length
            self._pending = bytearray()  # what is decoded now may view the old one
            if len(pending) == self._need:
                self._need = HEADER_BYTES
                out.append(self._decode(memoryview(pending), code, HEADER_BYTES, len(pending)))
            else:
                self._hold(pending)
        return stop

    def _fill(self, room: memoryview, view: memoryview, start: int, end: int, out: list[Any], *, in_place: bool) -> int:
        """Like `_complete`, for a long frame. in_place: its bytes are already in `room`."""
        stop = min(end, start + len(room))
        if not in_place:
            room[: stop - start] = view[start:stop]
        self.room = room[stop - start :]
        if not self.room:
            frame, self._long, self.room = self._long, memoryview(b""), None
            self._need = HEADER_BYTES
            out.append(self._decode(frame, _read_header(frame)[0], HEADER_BYTES, len(frame)))
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
