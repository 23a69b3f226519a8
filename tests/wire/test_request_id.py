"""Request ids: flow and sequence in one number."""

from hypothesis import given
from hypothesis import strategies as st

from segstore.wire import request_id as ids

INT32 = st.integers(-(2**31), 2**31 - 1)


@given(INT32, INT32)
def test_flow_and_sequence_come_back_from_their_id(flow: int, sequence: int) -> None:
    packed = ids.pack(flow, sequence)
    assert -(2**63) <= packed < 2**63
    assert (ids.flow_of(packed), ids.sequence_of(packed)) == (flow, sequence)


def test_flows_start_at_one_and_the_largest_is_followed_by_one() -> None:
    assert ids.next_flow(ids.FLOWS_DISABLED, set()) == 1
    assert ids.next_flow(1, set()) == 2
    assert ids.next_flow(ids.MAX_FLOW - 1, set()) == ids.MAX_FLOW
    assert ids.next_flow(ids.MAX_FLOW, set()) == 1


def test_flows_in_use_are_skipped_also_across_the_wrap() -> None:
    assert ids.next_flow(1, {2, 3, 5}) == 4
    assert ids.next_flow(ids.MAX_FLOW - 1, {ids.MAX_FLOW, 1, 2}) == 3


@given(st.sampled_from([0, 1, 3, ids.MAX_FLOW - 2, ids.MAX_FLOW]), st.sets(st.integers(-2, 9)))
def test_a_flow_handed_out_is_free_and_in_range(last: int, near: set[int]) -> None:
    in_use = {n if n > 0 else ids.MAX_FLOW + n for n in near}
    flow = ids.next_flow(last, in_use)
    assert flow not in in_use
    assert 1 <= flow <= ids.MAX_FLOW


def test_sequences_count_up_and_the_largest_is_followed_by_zero() -> None:
    assert ids.next_sequence(0) == 1
    assert ids.next_sequence(2**28 - 1) == 2**28
    assert ids.next_sequence(ids.MAX_SEQUENCE) == 0
