"""The transitions of a segment writer."""

import pytest

from segstore.client.segment.states import TRANSITIONS, WriterEvent, WriterState, after
from tests.looped import looped


def test_a_writer_is_set_up_opened_and_closed() -> None:
    state = WriterState.CONNECTING
    for event in (WriterEvent.SENT, WriterEvent.ANSWERED, WriterEvent.LOST, WriterEvent.SENT, WriterEvent.CLOSED):
        state = after(state, event)
    assert state is WriterState.CLOSED


def test_a_writer_whose_segment_is_over_can_only_fail_or_close() -> None:
    possible = {event for event in WriterEvent if (WriterState.OVER, event) in TRANSITIONS}
    assert possible == {WriterEvent.FAILED, WriterEvent.CLOSED}


def test_a_closed_writer_stays_closed() -> None:
    assert not [event for state, event in TRANSITIONS if state is WriterState.CLOSED]


@looped("state", [WriterState.CONNECTING, WriterState.OPEN, WriterState.FAILED])
def test_a_set_up_that_was_not_sent_cannot_be_answered(state: WriterState) -> None:
    with pytest.raises(ValueError, match=f"in state {state.name} cannot take ANSWERED"):
        after(state, WriterEvent.ANSWERED)
