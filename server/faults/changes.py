"""Changes that rules make to replies: pure functions of frames."""

from __future__ import annotations

from typing import TYPE_CHECKING

from segstore.server.faults.rules import Corrupt, Drop, Duplicate, Truncate

if TYPE_CHECKING:
    from segstore.server.faults.observe import Seen
    from segstore.server.faults.rules import Action, Error
    from segstore.wire import Command


def changed(frames: list[bytes], action: Action | None, *, on_reply: bool = False) -> list[bytes]:
    """The frames of a reply after an action; unchanged by an action that is not about replies.

    on_reply: the rule matched the reply itself, so that `drop` and `duplicate` are about the reply.
    """
    match action:
        case Drop():
            return []
        case Duplicate(duplicate=what) if on_reply or what == "reply":
            return [each for each in frames for _ in range(2)]
        case Corrupt(corrupt=at, xor=xor):
            return [corrupted(each, at, xor) for each in frames]
        case Truncate(truncate=length):
            return [each[:length] for each in frames if length]
    return frames


def refusal(action: Error, seen: Seen) -> Command:
    """The reply that an error action gives to a request."""
    return action.reply(
        request_id=seen.request_id or 0,
        segment=seen.segments[0] if seen.segments else "",
        writer_id=seen.writer_id,
        number=seen.event_number if seen.event_number >= 0 else seen.offset,
        message=seen.type_name,
    )


def corrupted(frame: bytes, at: int, xor: int) -> bytes:
    """The frame with one byte changed; unchanged if it is too short."""
    if not -len(frame) <= at < len(frame):
        return frame
    changed = bytearray(frame)
    changed[at] ^= xor
    return bytes(changed)
