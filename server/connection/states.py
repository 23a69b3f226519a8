"""The life of a connection: its states, and the transitions between them.

    NEW ──MADE──▶ OPEN ──PEER_ENDED──▶ HALF_CLOSED           its requests are pending, or rules delay them
                   any of these two ──ENDED──▶ DRAINING      nothing more is executed; held replies are sent
                 or of these three ──FLUSHED──▶ CLOSING      what was written is sent
                  or of these four ──CUT──▶ CUT              what was written is dropped
                   or of these five ──LOST──▶ LOST           requests that were received are executed
                               LOST ──FINISHED──▶ CLOSED

A peer that does not read its replies, a slow disk, and a lane that holds requests pause reading and execution without a
change of state. A transition that the table lacks is a ValueError, a defect of the caller.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final


class SessionEnding(Enum):
    """How a session ends."""

    NOT_YET = auto()
    FLUSHED = auto()
    """After all replies were written."""
    DROPPED = auto()
    """At once: replies to requests in the same read are not written, as in the reference."""


class ConnectionState(Enum):
    """Where a connection stands."""

    NEW = auto()
    OPEN = auto()
    HALF_CLOSED = auto()
    DRAINING = auto()
    CLOSING = auto()
    CUT = auto()
    LOST = auto()
    CLOSED = auto()


class ConnectionEvent(Enum):
    """Events of a connection."""

    MADE = auto()
    """Its transport is there."""
    PEER_ENDED = auto()
    """EOF was received while requests are pending or delayed by rules."""
    ENDED = auto()
    """Its session has ended while replies are held."""
    FLUSHED = auto()
    """Its session has ended, and all replies are written."""
    CUT = auto()
    LOST = auto()
    """The transport has reported its end."""
    FINISHED = auto()
    """All requests are executed, and the session is closed."""


_State, _Event = ConnectionState, ConnectionEvent
_SERVED: Final = (_State.OPEN, _State.HALF_CLOSED, _State.DRAINING)

TRANSITIONS: Final = {
    (_State.NEW, _Event.MADE): _State.OPEN,
    (_State.OPEN, _Event.PEER_ENDED): _State.HALF_CLOSED,
    (_State.DRAINING, _Event.PEER_ENDED): _State.DRAINING,
    **{(state, _Event.ENDED): _State.DRAINING for state in _SERVED},
    **{(state, _Event.FLUSHED): _State.CLOSING for state in _SERVED},
    **{(state, _Event.CUT): _State.CUT for state in (*_SERVED, _State.CLOSING)},
    **{(state, _Event.LOST): _State.LOST for state in (*_SERVED, _State.CLOSING, _State.CUT)},
    (_State.LOST, _Event.FINISHED): _State.CLOSED,
}


def after(state: ConnectionState, event: ConnectionEvent) -> ConnectionState:
    """Returns the next state. Raises ValueError if the event is impossible in this state."""
    if (following := TRANSITIONS.get((state, event))) is None:
        raise ValueError(f"a connection in state {state.name} cannot take {event.name}")
    return following
