"""Splits one direction of a link into frames without losing or changing a byte.

A frame of a known type comes with its command, everything else without. If runs are requested, consecutive whole
appends or acknowledgements are one piece.

Invariants: no input raises an error; after a feed that took everything, at most one frame of a known type, or an
incomplete header, is buffered. Frames of unknown types are forwarded as they arrive. After an invalid length, all
following bytes are forwarded undecoded.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

from segstore.wire import COMMANDS, HEADER_BYTES, MAX_FRAME_BYTES, AppendBlock, WireError, decode
from segstore.wire.trace import is_request

if TYPE_CHECKING:
    from segstore.wire import Command

_header = struct.Struct(">ii").unpack_from

FindRuns = Callable[[memoryview, int], tuple[list[Any], int]]
"""Returns the runs that begin at a position of the bytes, and their end."""


class ReceivedBytes(NamedTuple):
    """Bytes as received, with their command, or the runs that they are; None if they are only forwarded.

    is_request: whether they are or complete a frame that is numbered as a request, also if it cannot be decoded.
    """

    data: bytes
    command: Command | list[Any] | None
    is_request: bool = False


class FrameSplitter:
    """Splits one direction of a connection into pieces.

    Attributes:
        problem: the first thing that was wrong with the bytes; "" if nothing was.
        has_more: whether the last feed stopped early, so that the next one may return pieces without new bytes.
    """

    def __init__(self) -> None:
        self.problem = ""
        self.has_more = False
        self._left = b""  # behind a feed that stopped early, from `_at` on
        self._at = 0
        self._begun = bytearray()  # an incomplete frame; nothing is left then
        self._need = 0  # bytes that `_begun` must reach before there is anything to do
        self._passing = 0
        self._passes_request = False
        self._lost = False

    @property
    def held(self) -> int:
        """Number of bytes in memory: of an incomplete frame, or of a feed that stopped early."""
        return len(self._begun) + len(self._left)

    def feed(self, data: bytes, most: float = inf, find_runs: FindRuns | None = None) -> list[ReceivedBytes]:
        """Takes the next bytes and returns the pieces that they complete, at most `most`.

        With `find_runs` it also stops before an append block, because earlier pieces may decide whether the block is a
        run.
        """
        self.has_more = False
        if self._lost:
            return [ReceivedBytes(data, None)]
        if self._begun:
            self._begun += data
            if len(self._begun) < self._need:
                return []
            data = bytes(self._begun)
            self._begun.clear()
        at, self._at = self._at, 0
        if at:
            data, self._left = self._left + data, b""
        pieces: list[ReceivedBytes] = []
        end = len(data)
        if find_runs is not None and not self._passing:
            runs, stop = find_runs(memoryview(data), at)
            if runs:
                pieces.append(ReceivedBytes(data[at:stop], runs))
                at = stop
        # There are five cases: 1. the rest of a frame of an unknown type; 2. an incomplete header; 3. an invalid
        # length; 4. a frame of a known type, whole or not; 5. the start of a frame of an unknown type.
        while at < end:
            self.has_more = len(pieces) >= most
            if self.has_more:
                break
            if not self._passing:
                self._need = HEADER_BYTES
                if end - at < HEADER_BYTES:
                    break
                code, length = _header(data, at)
                if not 0 <= length <= MAX_FRAME_BYTES - HEADER_BYTES:
                    self._set_problem(f"a frame that announces {length % (1 << 32)} bytes")
                    self._lost = True
                    self._passing, self._passes_request = end - at, False
                elif code in COMMANDS:
                    self.has_more = find_runs is not None and bool(pieces) and code == AppendBlock.code
                    self._need += length
                    stop = at + self._need
                    if self.has_more or stop > end:
                        break
                    pieces.append(ReceivedBytes(data[at:stop], self._decoded(data[at:stop]), is_request(code)))
                    at = stop
                    continue
                else:
                    self._set_problem(f"no command has the type code {code}")
                    self._passing, self._passes_request = HEADER_BYTES + length, is_request(code)
            stop = min(end, at + self._passing)
            pieces.append(ReceivedBytes(data[at:stop], None, self._passes_request and self._passing == stop - at))
            self._passing -= stop - at
            at = stop
        if self.has_more:
            self._left, self._at = data, at
        else:
            self._begun += data[at:]
        return pieces

    def rest(self) -> bytes:
        """Returns the bytes of an incomplete frame, and drops them."""
        rest = bytes(self._begun) + self._left[self._at :]
        self.clear()
        return rest

    def clear(self) -> None:
        """Discards the buffered bytes."""
        self._begun.clear()
        self._left, self._at = b"", 0
        self.has_more = False

    def _decoded(self, frame: bytes) -> Command | None:
        try:
            return decode(frame)
        except WireError as error:
            self._set_problem(str(error))
            return None

    def _set_problem(self, problem: str) -> None:
        self.problem = self.problem or problem
