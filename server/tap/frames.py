"""Splits one direction of a link into frames without losing or changing a byte.

A frame of a known type comes with its command, everything else without.

Invariants: no input raises an error; at most one frame of a known type, or an incomplete header, is buffered. Frames of
unknown types are forwarded as they arrive. After an invalid length, all following bytes are forwarded undecoded.
"""

from __future__ import annotations

import struct
from math import inf
from typing import TYPE_CHECKING, NamedTuple

from segstore.wire import COMMANDS, HEADER_BYTES, MAX_FRAME_BYTES, WireError, decode

if TYPE_CHECKING:
    from segstore.wire import Command

_header = struct.Struct(">ii").unpack_from


class Piece(NamedTuple):
    """Bytes as received, with their command; None if they are only forwarded."""

    data: bytes
    command: Command | None


class Frames:
    """Splits one direction of a connection into pieces.

    Attributes:
        problem: the first thing that was wrong with the bytes; "" if nothing was.
        held: number of bytes of an incomplete frame.
        has_more: whether the last feed stopped at its limit, so that the next one may return pieces without new bytes.
    """

    def __init__(self) -> None:
        self.problem = ""
        self.has_more = False
        self._pending = bytearray()
        self._passing = 0
        self._lost = False

    @property
    def held(self) -> int:
        return len(self._pending)

    def feed(self, data: bytes, most: float = inf) -> list[Piece]:
        """Takes the next bytes and returns the pieces that they complete, at most `most`."""
        self.has_more = False
        if self._lost:
            return [Piece(data, None)]
        pieces: list[Piece] = []
        pending = self._pending
        pending += data
        at, end = 0, len(pending)
        while at < end:
            if len(pieces) >= most:
                self.has_more = True
                break
            if not self._passing:
                if end - at < HEADER_BYTES:
                    break
                code, length = _header(pending, at)
                if not 0 <= length <= MAX_FRAME_BYTES - HEADER_BYTES:
                    self._set_problem(f"a frame that announces {length % (1 << 32)} bytes")
                    self._lost = True
                    self._passing = end - at
                elif code in COMMANDS:
                    stop = at + HEADER_BYTES + length
                    if stop > end:
                        break
                    pieces.append(self._piece(bytes(pending[at:stop])))
                    at = stop
                    continue
                else:
                    self._set_problem(f"no command has the type code {code}")
                    self._passing = HEADER_BYTES + length
            stop = min(end, at + self._passing)
            pieces.append(Piece(bytes(pending[at:stop]), None))
            self._passing -= stop - at
            at = stop
        del pending[:at]
        return pieces

    def rest(self) -> bytes:
        """Returns the bytes of an incomplete frame, and drops them."""
        rest = bytes(self._pending)
        self._pending.clear()
        return rest

    def _piece(self, frame: bytes) -> Piece:
        try:
            return Piece(frame, decode(frame))
        except WireError as error:
            self._set_problem(str(error))
            return Piece(frame, None)

    def _set_problem(self, problem: str) -> None:
        self.problem = self.problem or problem
