"""Attribute updates: what each kind asks for, and what it leaves."""

from uuid import UUID

import pytest

from segstore.server.store import EVENT_COUNT, NULL_VALUE, AttributeUpdate, BadAttribute
from segstore.server.store.attributes import MissingValue, UpdateType, core_id, evaluate, is_core
from segstore.server.store.errors import Unmapped
from tests.looped import looped

A, B = UUID(int=1), UUID(int=2)


def run(state: dict[UUID, int], *updates: tuple[UUID, UpdateType, int, int]) -> list[tuple[UUID, int]]:
    return evaluate("segment", state.get, [AttributeUpdate(*update) for update in updates])


def test_core_attributes_are_known_by_the_first_half_of_their_id() -> None:
    assert str(EVENT_COUNT) == "80000000-0000-0000-0000-000000000001"
    assert is_core(EVENT_COUNT)
    assert is_core(core_id(1 << 20))
    assert not is_core(A)
    assert not is_core(UUID("80000000-0000-0001-0000-000000000001"))


@looped(
    ("kind", "old", "new", "expected", "result"),
    [
        (UpdateType.NONE, None, 5, 0, 5),
        (UpdateType.REPLACE, None, 5, 0, 5),
        (UpdateType.REPLACE, 7, 5, 0, 5),
        (UpdateType.REPLACE_IF_GREATER, None, -5, 0, -5),
        (UpdateType.REPLACE_IF_GREATER, 4, 5, 0, 5),
        (UpdateType.ACCUMULATE, None, 5, 0, 5),
        (UpdateType.ACCUMULATE, 20, 5, 0, 25),
        (UpdateType.ACCUMULATE, (1 << 63) - 1, 1, 0, -(1 << 63)),
        (UpdateType.REPLACE_IF_EQUALS, 7, 5, 7, 5),
        (UpdateType.REPLACE_IF_EQUALS, NULL_VALUE, 5, NULL_VALUE, 5),
    ],
)
def test_an_update_that_holds_gives_its_value(
    kind: UpdateType, old: int | None, new: int, expected: int, result: int
) -> None:
    state = {} if old is None else {A: old}
    assert run(state, (A, kind, new, expected)) == [(A, result)]


@looped(
    ("kind", "old", "new", "expected"),
    [
        (UpdateType.NONE, 7, 5, 0),
        (UpdateType.NONE, NULL_VALUE, 5, 0),
        (UpdateType.REPLACE_IF_GREATER, 5, 5, 0),
        (UpdateType.REPLACE_IF_EQUALS, 7, 5, 6),
        (UpdateType.REPLACE_IF_EQUALS, NULL_VALUE, 5, 0),
    ],
)
def test_an_update_that_does_not_hold_tells_the_value_that_is_there(
    kind: UpdateType, old: int, new: int, expected: int
) -> None:
    with pytest.raises(BadAttribute) as error:
        run({A: old}, (A, kind, new, expected))
    assert (error.value.attribute_id, error.value.previous) == (A, old)
    assert not isinstance(error.value, MissingValue)


def test_comparing_with_what_was_never_looked_up_is_an_error_of_its_own() -> None:
    with pytest.raises(MissingValue):
        run({}, (A, UpdateType.REPLACE_IF_EQUALS, 5, NULL_VALUE))


def test_updates_of_one_request_are_judged_against_the_values_before_it() -> None:
    result = run({A: 1}, (A, UpdateType.REPLACE, 10, 0), (A, UpdateType.ACCUMULATE, 5, 0), (B, UpdateType.NONE, 3, 0))
    assert result == [(A, 10), (A, 6), (B, 3)]


def test_an_unknown_update_type_has_no_reply() -> None:
    assert AttributeUpdate.from_wire(A, 3, 5, 0) == AttributeUpdate(A, UpdateType.ACCUMULATE, 5, 0)
    for number in (-1, 5, 127):
        with pytest.raises(Unmapped):
            AttributeUpdate.from_wire(A, number, 5, 0)
