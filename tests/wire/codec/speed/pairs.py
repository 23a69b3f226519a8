"""Each function with an equal in C, in C and in Python."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from segstore.client.connection import WRITER_SLOTS, WRITERS, InFlight, Pending, add_behind
from segstore.client.connection.acknowledgements import ACK_LAYOUT, ACKNOWLEDGED, acknowledge
from segstore.client.connection.in_flight import Budget, resolve_stored
from segstore.client.connection.outbox import run_turns
from segstore.client.segment import SegmentWriter
from segstore.client.segment.machine import WriterMachine
from segstore.client.stream.events import frame_header, split_events
from segstore.server.durable.files import write_and_sync
from segstore.wire.blocks import APPEND_LAYOUT
from segstore.wire.codec import codec
from segstore.wire.hashing import murmur3_128_low
from segstore.wire.trace import TraceWriter
from segstore.wire.trace.framing import frames_into, whole_frames
from segstore.wire.trace.writer import RECORDED, RECORDED_SLOTS

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Pair", "outcome", "pairs"]

Pair = tuple["Callable[..., Any]", "Callable[..., Any]"]


def pair(function: Any, *types: type, **layout: Any) -> Pair:
    """The function in C and in Python."""
    assert codec.SPEED is not None
    behind = getattr(function, "__wrapped__", function)
    return codec.SPEED.shortcut(behind, *types, **layout), behind


def pairs() -> dict[str, Pair]:
    of_writers = {"slots": (*WRITER_SLOTS, "_events", "_error", "_largest", "_appends")}
    return {
        "append": pair(SegmentWriter.append, *WRITERS, WriterMachine, **of_writers),
        "run_turns": pair(run_turns, *WRITERS, slots=WRITER_SLOTS, **APPEND_LAYOUT),
        "acknowledge": pair(acknowledge, *ACKNOWLEDGED, **ACK_LAYOUT),
        "add_behind": pair(
            *(add_behind, InFlight, Pending, Budget),
            slots=("newest", "added_bytes", "overhead", "full_at", "left", "largest"),
        ),
        "resolve_stored": pair(resolve_stored, Pending, asyncio.Future, asyncio.InvalidStateError, slots=("done",)),
        "split_events": pair(split_events, head=frame_header(0)),
        "murmur3_128_low": pair(murmur3_128_low),
        "whole_frames": pair(whole_frames),
        "frames_into": pair(frames_into),
        "add": pair(TraceWriter.add, *RECORDED, slots=RECORDED_SLOTS),
        "write_and_sync": pair(write_and_sync),
    }


def outcome(call: Callable[..., Any], *arguments: Any) -> Any:
    try:
        found = call(*arguments)
    except Exception as error:  # noqa: BLE001 — of whatever kind, it is to be the same
        return type(error), str(error)
    return found
