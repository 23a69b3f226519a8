"""The error tree: one root, facts as attributes, one sentence."""

import copy
import pickle

from segstore.wire import BadField, FrameTooLarge, OutOfOrder, Truncated, UnknownCommand, WireError
from tests.looped import looped

KINDS = [FrameTooLarge, Truncated, UnknownCommand, BadField, OutOfOrder]
FACTS = {"code": 9, "type_name": "READ_SEGMENT", "field": "segment", "offset": 8, "limit": 3, "actual": 5}


@looped("kind", KINDS)
def test_facts_are_attributes_and_only_those_that_are_set_are_listed(kind: type[WireError]) -> None:
    assert kind("why").facts() == {}
    assert kind("why", **FACTS).facts() == FACTS
    assert kind("why", offset=0, actual=0).facts() == {"offset": 0, "actual": 0}
    assert kind("why").decoded == ()


@looped(
    ("facts", "said"),
    [
        ({}, "why"),
        ({"code": 9}, "type 9: why"),
        ({"code": 0}, "type 0: why"),
        ({"code": 9, "type_name": "READ_SEGMENT"}, "READ_SEGMENT: why"),
        ({"field": "a.b[1]"}, "a.b[1]: why"),
        ({"offset": 0}, "at byte 0: why"),
        ({"type_name": "READ_SEGMENT", "field": "segment", "offset": 8}, "READ_SEGMENT.segment at byte 8: why"),
    ],
)
def test_the_text_is_one_sentence_with_the_place_in_front(facts: dict[str, object], said: str) -> None:
    assert str(BadField("why", **facts)) == said  # type: ignore[arg-type]


@looped("again", [copy.copy, lambda error: pickle.loads(pickle.dumps(error))])
def test_an_error_can_be_copied_and_sent_to_another_process(again: object) -> None:
    error = Truncated("why", **FACTS)  # type: ignore[arg-type]
    error.decoded = (1, 2)
    other = again(error)  # type: ignore[operator]
    assert type(other) is Truncated
    assert (str(other), other.facts(), other.decoded) == (str(error), FACTS, (1, 2))
