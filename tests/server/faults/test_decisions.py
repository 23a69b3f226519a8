"""Deciding about faults: which rules fire, when, and that the same seed decides the same."""

from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segstore.server.faults import Rule, Seen
from segstore.server.faults.decisions import Decider, Plan, Wait
from segstore.server.faults.observe import request_seen
from segstore.server.faults.rules import Close
from segstore.wire import KeepAlive, ReadSegment
from segstore.wire.blocks import Append
from segstore.wire.request_id import pack
from tests.looped import looped

A, B = "scope/stream/0.#epoch.0", "scope/stream/1.#epoch.0"


def read(number: int = 1, segment: str = A, connection: int = 1, store: int = 0, request_id: int = 4) -> Seen:
    command = ReadSegment(segment, 0, 10, "", request_id)
    return request_seen(command, number, store=store, connection=connection, now_s=0.0, started_s=0.0)


def append(number: int = 1, writer: int = 7, segment: str = A) -> Seen:
    item = Append(segment, UUID(int=writer), number, 1, b"data", None, 3)
    return request_seen(item, number, store=0, connection=1, now_s=0.0, started_s=0.0)


def decider(*rules: dict[str, Any], seed: int = 0) -> Decider:
    made = Decider(seed)
    for rule in rules:
        made.add(Rule(**{"do": "close", **rule}))
    return made


def fires(made: Decider, *subjects: Seen) -> list[bool]:
    return [made.decide(subject) is not None for subject in subjects]


@looped(
    ("conditions", "expected"),
    [
        ({}, "xxxxxxxx"),
        ({"nth": 3}, "..x....."),
        ({"nth": [1, 4]}, "x..x...."),
        ({"skip": 2}, "..xxxxxx"),
        ({"every": 3}, "..x..x.."),
        ({"skip": 1, "every": 2}, "..x.x.x."),
        ({"times": 2}, "xx......"),
        ({"skip": 1, "times": 2}, ".xx....."),
        ({"do": ["ok", "close", "drop"]}, "xxx....."),
        ({"match": "type = HELLO"}, "........"),
        ({"store": 1}, "........"),
        ({"probability": 0.0}, "........"),
    ],
)
def test_a_rule_fires_at_the_matches_that_it_lists(conditions: dict[str, Any], expected: str) -> None:
    fired = fires(decider(conditions), *(read(number) for number in range(1, 9)))
    assert "".join(".x"[each] for each in fired) == expected


@looped(
    ("each", "subjects"),
    [
        ("connection", [read(connection=1), read(connection=2), read(connection=1), read(connection=2)]),
        ("segment", [read(segment=A), read(segment=B), read(segment=A), read(segment=B)]),
        ("writer", [append(1, 7), append(2, 8), append(3, 7), append(4, 8)]),
        ("flow", [read(request_id=pack(1, 1)), read(request_id=pack(2, 1)), read(request_id=pack(1, 2))]),
    ],
)
def test_what_counts_by_itself_is_counted_by_itself(each: str, subjects: list[Seen]) -> None:
    assert fires(decider({"nth": 1, "each": each}), *subjects) == [True, True, False, False][: len(subjects)]


def test_waits_add_up_and_the_first_of_the_other_actions_is_taken() -> None:
    made = decider(
        {"name": "a", "do": {"delay_ms": 10}},
        {"name": "b", "do": "close after"},
        {"name": "c", "do": "drop"},
        {"name": "d", "do": {"delay_ms": 5}},
        {"name": "e", "do": {"hold": "after", "overtake": True}},
    )
    assert made.decide(read()) == Plan("b", Close(close="after"), Wait(0.015), Wait(0.0, ("e",), True))
    assert [decision.rule for decision in made.decisions] == ["a", "b", "d", "e"]
    assert [tally.name for tally in made.tallies() if not tally.matched] == ["c"]


def test_rules_on_replies_are_asked_about_replies_alone() -> None:
    made = decider({"on": "reply", "do": {"delay_ms": 1, "at": "before"}})
    assert made.decide(read()) is None
    reply = read()
    reply.direction = 1
    assert made.decide(reply) == Plan(after=Wait(0.001)), "a reply waits after, whatever the rule says"
    assert made.looks_at_replies
    made.disable("rule 1")
    assert not made.looks_at_replies


def test_a_decision_names_its_request_and_the_request_lists_its_decisions() -> None:
    made = decider({"name": "lost", "nth": 1, "do": "close after"})
    seen = append(12)
    made.decide(seen)
    assert str(made.decisions[0]) == (
        f"lost: close after at request 12, APPEND_BLOCK_END of {A} on connection 1, match 1"
    )
    assert seen.faults == ("lost: close after",)


def test_a_name_is_taken_once_and_a_rule_can_be_taken_out() -> None:
    made = decider({"name": "a"}, {})
    assert made.rules == ["a", "rule 2"]
    with pytest.raises(ValueError, match="the name 'a'"):
        made.add(Rule(name="a", do="ok"))
    made.clear("a")
    assert made.rules == ["rule 2"]
    made.clear()
    assert made.rules == []


def test_a_request_without_segments_or_request_id_is_decided_about_too() -> None:
    seen = request_seen(KeepAlive(), 1, store=0, connection=1, now_s=0.0, started_s=0.0)
    assert decider({"match": "type = KEEP_ALIVE", "each": "flow"}).decide(seen) is not None


CONNECTIONS = st.lists(st.sampled_from([1, 2, 3]), max_size=60)


@looped(
    ("seed", "probability", "expected"),
    [
        (1, 0.5, "..xx.x..xx.xx...x.xx.xxxx.xxx..x.x.x...."),
        (2, 0.5, "..xx..xx..xx......x.x..x.xx.xx...xxx..xx"),
        (1, 0.25, "..x......x.xx...x.xx..xx..x....x.x.x...."),
    ],
)
def test_a_seed_always_gives_the_same_sequence(seed: int, probability: float, expected: str) -> None:
    lossy = decider({"name": "r", "probability": probability}, seed=seed)
    fired = fires(lossy, *(read(number, connection=1 + number % 2) for number in range(40)))
    assert "".join(".x"[each] for each in fired) == expected


@given(CONNECTIONS, st.randoms(use_true_random=False))
def test_chance_does_not_depend_on_how_connections_are_interleaved(workload: list[int], random: Any) -> None:
    def by_connection(order: list[int]) -> dict[int, list[bool]]:
        made = decider({"probability": 0.5}, seed=3)
        found: dict[int, list[bool]] = {}
        for connection in order:
            found.setdefault(connection, []).append(made.decide(read(connection=connection)) is not None)
        return found

    shuffled = list(workload)
    random.shuffle(shuffled)
    assert by_connection(workload) == by_connection(shuffled)


@looped("at", ["before", "after"])
def test_a_delay_of_nothing_is_no_wait_and_is_not_overtaken(at: str) -> None:
    plan = decider({"do": {"delay_ms": 0, "at": at, "overtake": True}}).decide(read())
    assert (plan.before, plan.after) == (Wait(), Wait())


def test_a_disabled_rule_is_skipped_and_counts_on_when_it_is_enabled_again() -> None:
    made = decider({"name": "second", "nth": 2}, {"name": "last", "do": "drop"})
    assert fires(made, read()) == [True]
    made.disable("second")
    made.disable("last")
    assert fires(made, read(), read()) == [False, False]
    assert [(tally.matched, tally.fired, tally.enabled) for tally in made.tallies()] == [(1, 0, False), (1, 1, False)]
    made.enable("second")
    plan = made.decide(read())
    assert plan.rule == "second"


def test_a_replaced_rule_keeps_its_place_and_state_and_counts_from_zero() -> None:
    made = decider({"name": "first"}, {"name": "last", "do": "drop"})
    made.disable("last")
    assert fires(made, read()) == [True]
    assert made.replace("first", Rule(do="drop", nth=2)) == "first"
    assert made.replace("last", Rule(name="new", on="reply", do="drop")) == "new"
    assert [(tally.name, tally.matched, tally.enabled) for tally in made.tallies()] == [
        ("first", 0, True),
        ("new", 0, False),
    ]
    assert not made.looks_at_replies
    assert fires(made, read(), read()) == [False, True]
    with pytest.raises(ValueError, match="there is a rule with the name 'new'"):
        made.replace("first", Rule(name="new", do="drop"))
    with pytest.raises(KeyError, match="other"):
        made.replace("other", Rule(do="drop"))
