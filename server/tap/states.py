"""The states of a link and the transitions between them.

    CONNECTING ──CONNECTED──▶ PASSING ──CLIENT_ENDED──▶ CLIENT_ENDED ──STORE_ENDED──▶ CLOSING
                                      ──STORE_ENDED───▶ STORE_ENDED ──CLIENT_ENDED──▶ CLOSING
         any of these ──CUT──▶ DRAINING                  a fault rule closes the connection
         any of these, DRAINING ──CLOSE──▶ CLOSING ──GONE──▶ CLOSED

A client may end before its store is connected. A transition that the table lacks is a ValueError, a defect of the
caller.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final


class LinkState(Enum):
    """Where a link stands."""

    CONNECTING = auto()
    """The client is not read: its store is not connected."""
    PASSING = auto()
    CLIENT_ENDED = auto()
    """The store has received EOF, and still answers."""
    STORE_ENDED = auto()
    """The client has received EOF, and may still send."""
    DRAINING = auto()
    """Nothing more is taken from either side; replies that are queued still leave."""
    CLOSING = auto()
    """Nothing more is forwarded; the sockets send their buffers and close."""
    CLOSED = auto()


class LinkEvent(Enum):
    """An event in the life of a link."""

    CONNECTED = auto()
    """The store is connected."""
    CLIENT_ENDED = auto()
    """EOF, from the client or a fault rule, is due at the store."""
    STORE_ENDED = auto()
    """The store's EOF is due at the client."""
    CUT = auto()
    """A fault rule closes the connection."""
    CLOSE = auto()
    """A socket was lost, or both sockets must close."""
    GONE = auto()
    """Both sockets are closed, and no attempt to connect is pending."""


_OPEN: Final = (LinkState.CONNECTING, LinkState.PASSING, LinkState.CLIENT_ENDED, LinkState.STORE_ENDED)
_ENDING: Final = (LinkState.DRAINING, LinkState.CLOSING)

TRANSITIONS: Final = {
    (LinkState.CONNECTING, LinkEvent.CONNECTED): LinkState.PASSING,
    (LinkState.CONNECTING, LinkEvent.CLIENT_ENDED): LinkState.CLIENT_ENDED,
    (LinkState.CLIENT_ENDED, LinkEvent.CONNECTED): LinkState.CLIENT_ENDED,
    (LinkState.PASSING, LinkEvent.CLIENT_ENDED): LinkState.CLIENT_ENDED,
    (LinkState.PASSING, LinkEvent.STORE_ENDED): LinkState.STORE_ENDED,
    (LinkState.CLIENT_ENDED, LinkEvent.STORE_ENDED): LinkState.CLOSING,
    (LinkState.STORE_ENDED, LinkEvent.CLIENT_ENDED): LinkState.CLOSING,
    **{(state, LinkEvent.CUT): LinkState.DRAINING for state in _OPEN},
    **{(state, LinkEvent.CLOSE): LinkState.CLOSING for state in (*_OPEN, *_ENDING)},
    # These were in flight when the link began to end.
    **{(state, LinkEvent.CONNECTED): state for state in _ENDING},
    **{(state, LinkEvent.STORE_ENDED): state for state in _ENDING},
    (LinkState.CLOSING, LinkEvent.CLIENT_ENDED): LinkState.CLOSING,
    (LinkState.CLOSING, LinkEvent.GONE): LinkState.CLOSED,
}


def after(state: LinkState, event: LinkEvent) -> LinkState:
    """Returns the next state. Raises ValueError if the event is impossible in this state."""
    if (state, event) not in TRANSITIONS:
        raise ValueError(f"a link in state {state.name} cannot take {event.name}")
    return TRANSITIONS[state, event]
