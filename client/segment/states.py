"""The states of a segment writer and the transitions between them.

    CONNECTING ──SENT──▶ SETTING_UP ──ANSWERED──▶ OPEN        LOST: back to CONNECTING
         any of these ──SEGMENT_OVER──▶ OVER                  sealed or gone: the owner takes over pending events
         any of these, OVER ──FAILED──▶ FAILED                 ──CLOSED──▶ CLOSED from any state

A transition that the table lacks is a ValueError, a defect of the caller.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final


class WriterState(Enum):
    """Where a segment writer stands."""

    CONNECTING = auto()
    SETTING_UP = auto()
    OPEN = auto()
    OVER = auto()
    FAILED = auto()
    CLOSED = auto()


class WriterEvent(Enum):
    """An event in the life of a writer."""

    SENT = auto()
    """SetupAppend was sent."""
    ANSWERED = auto()
    """AppendSetup was received."""
    LOST = auto()
    """The connection was lost, or an attempt to set up failed."""
    SEGMENT_OVER = auto()
    FAILED = auto()
    CLOSED = auto()


_ACTIVE: Final = (WriterState.CONNECTING, WriterState.SETTING_UP, WriterState.OPEN)

TRANSITIONS: Final = {
    (WriterState.CONNECTING, WriterEvent.SENT): WriterState.SETTING_UP,
    (WriterState.SETTING_UP, WriterEvent.ANSWERED): WriterState.OPEN,
    **{(state, WriterEvent.LOST): WriterState.CONNECTING for state in _ACTIVE},
    **{(state, WriterEvent.SEGMENT_OVER): WriterState.OVER for state in _ACTIVE},
    **{(state, WriterEvent.FAILED): WriterState.FAILED for state in (*_ACTIVE, WriterState.OVER)},
    **{(state, WriterEvent.CLOSED): WriterState.CLOSED for state in (*_ACTIVE, WriterState.OVER, WriterState.FAILED)},
}


def after(state: WriterState, event: WriterEvent) -> WriterState:
    """Returns the next state. Raises ValueError if the table has no transition."""
    following = TRANSITIONS.get((state, event))
    if following is None:
        raise ValueError(f"a segment writer in state {state.name} cannot take {event.name}")
    return following
