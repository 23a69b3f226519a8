"""The transitions of a connection."""

from __future__ import annotations

import pytest

from segstore.server.connection.states import TRANSITIONS, ConnectionEvent, ConnectionState, after
from tests.looped import looped

State, Event = ConnectionState, ConnectionEvent


def test_a_peer_that_ends_first_is_served_drained_and_closed() -> None:
    state = State.NEW
    passed = []
    for event in (Event.MADE, Event.PEER_ENDED, Event.ENDED, Event.FLUSHED, Event.LOST, Event.FINISHED):
        state = after(state, event)
        passed.append(state)
    expected = [State.OPEN, State.HALF_CLOSED, State.DRAINING, State.CLOSING, State.LOST, State.CLOSED]
    assert passed == expected


def test_every_state_but_a_new_one_can_be_lost_and_only_a_lost_one_is_closed() -> None:
    assert {state for state, event in TRANSITIONS if event is Event.LOST} == {
        *(State.OPEN, State.HALF_CLOSED, State.DRAINING, State.CLOSING, State.CUT)
    }
    assert [state for (state, _), then in TRANSITIONS.items() if then is State.CLOSED] == [State.LOST]


def test_no_transition_leads_back() -> None:
    order = list(State)
    assert all(order.index(then) >= order.index(state) for (state, _), then in TRANSITIONS.items())
    assert {state for (state, _), then in TRANSITIONS.items() if then is state} == {State.DRAINING}


@looped("event", Event)
def test_a_closed_connection_takes_no_event(event: ConnectionEvent) -> None:
    with pytest.raises(ValueError, match=f"in state CLOSED cannot take {event.name}"):
        after(State.CLOSED, event)


@looped("state", [State.NEW, State.CLOSING, State.CUT, State.LOST])
def test_a_connection_that_is_not_served_is_not_drained(state: ConnectionState) -> None:
    with pytest.raises(ValueError, match=f"in state {state.name} cannot take ENDED"):
        after(state, Event.ENDED)
