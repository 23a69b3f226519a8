"""Splits a byte stream into frames the way a server of an older wire version did.

It has the interface and invariants of `FrameDecoder`, with three differences: type codes that the version did not know
are errors, newer fields have their defaults, and the version's own frame limit applies.

Bytes after the last field that a version knew were meant to be ignored, and are. Versions 5 to 8 took them for the next
frame, which almost always was a decode error after the command itself had been applied (fixed by d4a22be5cc "Issue
4211: Fix compatibility issue caused by additional fields"); and before 8 a ConditionalAppend with bytes after its event
was refused (8ba5431f42). `strict` reproduces this.
"""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Any

from segstore.wire.codec.codec import HEADER_BYTES, WIRE_VERSION
from segstore.wire.codec.framing import FrameDecoder
from segstore.wire.codec.versions import longest_frame_in, parse_as
from segstore.wire.commands import ConditionalAppend
from segstore.wire.errors import BadField, WireError
from segstore.wire.schema import MAX_FRAME_BYTES, BodyStream

if TYPE_CHECKING:
    from collections.abc import Mapping

    from segstore.wire.codec.joining import Joined
    from segstore.wire.schema import Buffer, Command


class OlderFrameDecoder(FrameDecoder):
    """Decodes the frames of one direction of one connection as a wire version did.

    max_frame_bytes: longest frame accepted; the version's own limit holds as well.
    strict: bytes of unknown fields are an error, as they were in versions 5 to 8.
    """

    def __init__(
        self,
        version: int,
        *,
        max_frame_bytes: int = MAX_FRAME_BYTES,
        strict: bool = False,
        most_elements: int | None = None,
    ) -> None:
        limit = min(max_frame_bytes, longest_frame_in(version))
        super().__init__(max_frame_bytes=limit, codec="construct", most_elements=most_elements)
        self._version = version
        self._strict = strict and version <= _LAST_TO_READ_ON
        self._behind: WireError | None = None

    def feed(
        self,
        data: Buffer,
        size: int | None = None,
        start: int = 0,
        most: int | None = None,
        records: Mapping[bytes, Any] | None = None,
        changed: bool = False,
    ) -> list[Command]:
        """As `FrameDecoder.feed`."""
        out = super().feed(data, size, start, most, records, changed)
        if self._behind is not None:
            error = self._behind
            self._failed = copy(error)
            self._pending, self.has_part = bytearray(), False
            error.decoded = out
            raise error
        return out

    def _decode(self, view: memoryview, code: int, start: int, end: int) -> Command:
        if self._behind is not None:
            raise self._behind
        command, left = parse_as(code, BodyStream(view[start:end], self._most_elements), self._version)
        if left and self._strict:
            error = BadField(
                f"wire version {self._version} takes the {left} bytes behind the last field for another frame",
                code=code,
                type_name=command.type_name,
                offset=HEADER_BYTES + end - start - left,
                actual=left,
            )
            if isinstance(command, ConditionalAppend) and self._version < _FIRST_WITH_REQUEST_IDS:
                raise error
            self._behind = error
        return command


_LAST_TO_READ_ON = 8
_FIRST_WITH_REQUEST_IDS = 8


def frame_decoder(
    version: int,
    *,
    max_frame_bytes: int = MAX_FRAME_BYTES,
    strict: bool = False,
    joined: Joined | None = None,
    most_elements: int | None = None,
) -> FrameDecoder:
    """Returns a decoder for a wire version; for the current version, a plain `FrameDecoder`."""
    if version == WIRE_VERSION:
        return FrameDecoder(max_frame_bytes=max_frame_bytes, joined=joined, most_elements=most_elements)
    return OlderFrameDecoder(version, max_frame_bytes=max_frame_bytes, strict=strict, most_elements=most_elements)
