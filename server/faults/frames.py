"""What faults make of replies and of sockets: pure functions of frames, and the end by a reset.

Used where a store's own replies are spoilt and where those of another store are, on their way through a tap.
"""

from __future__ import annotations

import socket
import struct
from typing import TYPE_CHECKING, Final

from segstore.server.faults.rules import Corrupt, Drop, Duplicate, Truncate

if TYPE_CHECKING:
    import asyncio

    from segstore.server.faults.observe import Seen
    from segstore.server.faults.rules import Action, Error
    from segstore.wire import Command

_NO_LINGER: Final = struct.pack("ii", 1, 0)


def spoilt(frames: list[bytes], action: Action | None, *, late: bool = False) -> list[bytes]:
    """What an action leaves of the frames of a reply; of one that is not about replies, all.

    late: the rule is one on replies, so that dropping and doubling mean these.
    """
    match action:
        case Drop():
            return []
        case Duplicate(duplicate=what) if late or what == "reply":
            return [each for each in frames for _ in range(2)]
        case Corrupt(corrupt=at, xor=xor):
            return [corrupted(each, at, xor) for each in frames]
        case Truncate(truncate=length):
            return [each[:length] for each in frames if length]
    return frames


def refusal(action: Error, seen: Seen) -> Command:
    """The reply to a request that an error is for."""
    return action.reply(
        request_id=seen.request_id or 0,
        segment=seen.segments[0] if seen.segments else "",
        writer_id=seen.writer_id,
        number=seen.event_number if seen.event_number >= 0 else seen.offset,
        said=seen.type_name,
    )


def corrupted(frame: bytes, at: int, xor: int) -> bytes:
    """A frame with a changed byte; as it is if it has no such byte."""
    if not -len(frame) <= at < len(frame):
        return frame
    changed = bytearray(frame)
    changed[at] ^= xor
    return bytes(changed)


def end_by_reset(transport: asyncio.Transport) -> None:
    """Has the end of a connection, whenever it comes, be a reset: what the peer has not read by then is lost."""
    found = transport.get_extra_info("socket")
    if found is not None:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
