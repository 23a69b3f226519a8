"""The states of a link: what may follow what."""

from __future__ import annotations

from itertools import product

import pytest

from segstore.server.tap.states import TRANSITIONS, LinkEvent, LinkState, after
from tests.looped import looped

E, S = LinkEvent, LinkState


@looped(
    ("events", "states"),
    [
        (
            [E.CONNECTED, E.CLIENT_ENDED, E.STORE_ENDED, E.CLOSE, E.CLOSE, E.GONE],
            [S.PASSING, S.CLIENT_ENDED, S.CLOSING, S.CLOSING, S.CLOSING, S.CLOSED],
        ),
        ([E.CONNECTED, E.STORE_ENDED, E.CLIENT_ENDED, E.GONE], [S.PASSING, S.STORE_ENDED, S.CLOSING, S.CLOSED]),
        ([E.CLIENT_ENDED, E.CONNECTED, E.STORE_ENDED], [S.CLIENT_ENDED, S.CLIENT_ENDED, S.CLOSING]),
        ([E.CONNECTED, E.CUT, E.STORE_ENDED, E.CLOSE], [S.PASSING, S.DRAINING, S.DRAINING, S.CLOSING]),
        ([E.CLOSE, E.CONNECTED, E.CLOSE, E.GONE], [S.CLOSING, S.CLOSING, S.CLOSING, S.CLOSED]),
    ],
)
def test_a_link_passes_its_states(events: list[LinkEvent], states: list[LinkState]) -> None:
    state, seen = S.CONNECTING, []
    for event in events:
        state = after(state, event)
        seen.append(state)
    assert seen == states


def test_what_the_table_lacks_is_a_defect() -> None:
    lacking = [each for each in product(S, E) if each not in TRANSITIONS]
    assert {(S.CONNECTING, E.STORE_ENDED), (S.PASSING, E.CONNECTED), (S.CLIENT_ENDED, E.CLIENT_ENDED)} < set(lacking)
    for state, event in lacking:
        with pytest.raises(ValueError, match=f"a link in state {state.name} cannot take {event.name}"):
            after(state, event)


def test_nothing_follows_the_end_and_no_link_goes_back() -> None:
    order = list(S)
    assert not [each for each in TRANSITIONS if each[0] is S.CLOSED]
    assert [each for each in TRANSITIONS if TRANSITIONS[each] is S.CLOSED] == [(S.CLOSING, E.GONE)]
    for (state, _), following in TRANSITIONS.items():
        assert order.index(following) >= order.index(state)
