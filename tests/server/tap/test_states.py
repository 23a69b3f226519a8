"""The states of a link: what may follow what."""

from __future__ import annotations

from segstore.server.tap.states import TRANSITIONS, LinkEvent, LinkState

S = LinkState


def test_nothing_follows_the_end_and_no_link_goes_back() -> None:
    order = list(S)
    assert not [transition for transition in TRANSITIONS if transition[0] is S.CLOSED]
    assert [each for each in TRANSITIONS if TRANSITIONS[each] is S.CLOSED] == [(S.CLOSING, LinkEvent.GONE)]
    for (state, _), following in TRANSITIONS.items():
        assert order.index(following) >= order.index(state)
