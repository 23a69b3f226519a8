"""Histories of registers: each broken in one way, right, or undecided."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from segstore.wire.commands import NOT_EXISTS
from segstore.wire.history import Fact, Judge, Key, Place, Verdicts
from segstore.wire.history.facts import Operation
from segstore.wire.history.linearizable import MOST_STATES
from segstore.wire.history.registers import CUT_OFF, FOREIGN, MAYBE_DELETED, TWO_CLOCKS

GONE = NOT_EXISTS
Row = tuple[Any, ...]
"""start, end, operation, then of a put: version, expected; a read: version; a remove: expected; a set: value, expected.

Operations: put, remove, read, set, value (a read of one), created, deleted; "?" after it: no reply came; "!": refused.
"""


def facts(rows: list[Row]) -> list[Fact]:
    made = []
    for number, (start, end, name, *more) in enumerate(rows):
        what, outcome = name.rstrip("?!"), {"?": "unknown", "!": "refused"}.get(name[-1], "ok")
        first, second, *_ = [*more, None, None]
        value, expected, version = {
            "put": (f"v{first}", second, first if outcome == "ok" else None),
            "remove": (None, first, None),
            "read": (None if first == GONE else f"v{first}", None, first),
            "set": (first, second, None),
            "value": (first, None, None),
        }.get(what, (None, None, None))
        if outcome == "refused" and what != "set":
            expected, version = first, second
        what, invoked = "read" if what == "value" else what, Place("a", 0, number, 1, start)
        operation = Operation(what, outcome, invoked, value, expected, version)
        made.append(Fact(Key("register", "table key"), Place("a", 1, number, 1, end), operation))
    return sorted(made, key=lambda fact: fact.place.time_ns)


def judged(rows: list[Row]) -> Verdicts:
    judge = Judge()
    for fact in facts(rows):
        judge.fact(fact)
    return judge.end()


BROKEN: list[tuple[str, str, list[Row], int]] = [
    ("version-backwards", "lower", [(1, 2, "put", 40), (3, 4, "put", 20)], 2),
    ("version-backwards", "the same", [(1, 4, "put", 40), (2, 5, "put", 40)], 2),
    ("not-linearizable", "stale", [(1, 2, "put", 20), (3, 4, "put", 40), (5, 6, "read", 40), (7, 8, "read", 20)], 2),
    ("not-linearizable", "lost", [(1, 2, "put", 20), (3, 4, "read", GONE)], 2),
    ("not-linearizable", "gone", [(1, 2, "put", 20), (3, 4, "remove"), (5, 6, "read", 20)], 3),
    ("not-linearizable", "back", [(1, 9, "put", 20), (2, 3, "read", 20), (4, 5, "read", GONE)], 2),
    ("not-linearizable", "false refusal", [(1, 2, "put", 20), (3, 4, "put!", 20)], 2),
    ("not-linearizable", "later", [(1, 2, "put", 20), (3, 4, "remove"), (5, 6, "put", 40), (7, 8, "put!", 40)], 2),
    (
        "not-linearizable",
        "stale later",
        [(1, 2, "put", 20), (3, 4, "remove"), (5, 6, "put", 40), (7, 8, "read", 20)],
        2,
    ),
    ("not-linearizable", "falsely missing", [(1, 2, "put", 20), (3, 4, "put!", 10, GONE)], 2),
    ("not-linearizable", "created", [(0, 1, "put", 90), (2, 3, "created"), (4, 5, "put!", GONE)], 1),
    ("not-linearizable", "value", [(1, 2, "set", 1), (3, 4, "set", 2), (5, 6, "value", 1)], 3),
    ("not-linearizable", "value", [(1, 2, "set", 1), (3, 4, "set!", 2, 1)], 2),
    ("false-compare-and-set", "old", [(1, 2, "put", 20), (3, 4, "put", 40), (5, 6, "put", 60, 20)], 2),
    ("false-compare-and-set", "missing", [(1, 2, "put", 20), (3, 4, "put", 40, GONE)], 2),
    ("false-compare-and-set", "removed", [(1, 2, "put", 20), (3, 4, "remove"), (5, 6, "remove", 20)], 3),
    ("false-compare-and-set", "twice", [(1, 2, "put", 20), (3, 6, "put", 40, 20), (4, 5, "put", 60, 20)], 2),
    ("false-compare-and-set", "value", [(1, 2, "set", 1), (3, 4, "set", 2, 1), (5, 6, "set", 3, 1)], 3),
]
RIGHT: list[tuple[str, list[Row]]] = [
    ("one after the other", [(1, 2, "put", 20), (3, 4, "read", 20), (5, 6, "put", 40, 20), (7, 8, "put!", 20)]),
    ("removed", [(1, 2, "put", 20), (3, 4, "remove", 20), (5, 6, "read", GONE), (7, 8, "put!", 20, GONE)]),
    ("again", [(1, 2, "put", 20), (3, 4, "remove"), (5, 6, "put", 40, GONE), (7, 8, "read", 40)]),
    ("at once", [(1, 9, "put", 40), (1, 9, "put", 20), (2, 3, "read", 20), (4, 5, "read", 40)]),
    ("at once, either", [(1, 9, "put", 20), (2, 3, "read", GONE), (4, 5, "read", 20)]),
    ("initial content", [(1, 2, "read", 20), (3, 4, "put", 40, 20)]),
    ("initially missing", [(1, 2, "put!", 20, GONE), (3, 4, "put", 40, GONE)]),
    ("no reply, stored", [(1, 2, "put", 20), (3, 3, "put?", 40), (5, 6, "put!", 20), (7, 8, "read", 40)]),
    ("no reply, not stored", [(1, 2, "put", 20), (3, 3, "put?", 40), (5, 6, "put", 60, 20)]),
    ("no reply, late", [(1, 2, "put", 20), (3, 3, "remove?"), (5, 6, "read", 20), (7, 8, "read", GONE)]),
    ("created again", [(1, 2, "put", 90), (3, 4, "deleted"), (5, 6, "created"), (7, 8, "put", 20, GONE)]),
    ("at the deletion", [(1, 9, "put", 90), (3, 4, "deleted"), (5, 6, "created"), (10, 11, "put", 20)]),
    ("values", [(1, 2, "set", 1, ""), (3, 4, "set", 2, 1), (5, 6, "set!", 3, 1), (7, 8, "value", 2)]),
    ("there and back", [(1, 2, "set", 79, 78), (3, 4, "set", 78, 79), (5, 6, "value", 78)]),
    ("the first value again", [(1, 2, "value", 78), (3, 4, "set", 78, 78)]),
    ("no reply, values", [(1, 2, "set", 1), (3, 3, "set?", 2, 1), (5, 6, "set!", 3, 1), (7, 8, "set", 4, 2)]),
]
OPEN: list[tuple[str, list[Row]]] = [
    ("another client's", [(1, 2, "put", 20), (3, 4, "read", 30), (5, 6, "put", 40, 30)]),
    ("another client writes the same", [(1, 2, "set", 1), (3, 4, "value", 8), (5, 6, "value", 9), (7, 8, "value", 1)]),
    ("other clients' values", [(1, 2, "set", 1), (3, 4, "value", 8), (5, 6, "value", 9), (7, 8, "value", 8)]),
]


@pytest.mark.parametrize("history", BROKEN, ids=lambda history: f"{history[0]} {history[1]}")
def test_a_broken_history_breaks_its_rule_and_names_the_fewest_operations(history: tuple[Any, ...]) -> None:
    rule, _, rows, count = history
    noise: list[Row] = [(100, 101, "value", 7)] if rows[0][2] == "set" else []
    verdicts = judged(rows + noise)
    assert [verdict.rule for verdict in verdicts.broken] == [rule], verdicts
    (verdict,) = verdicts.broken
    assert len({place.record for place in verdict.places}) == count, verdict
    assert verdict.places[-1].time_ns < 100


def test_a_right_history_breaks_no_rule() -> None:
    for name, rows in RIGHT:
        assert judged(rows)[:2] == ([], Counter()), name


def test_what_another_client_may_have_written_stays_open() -> None:
    for name, rows in OPEN:
        assert judged(rows)[:2] == ([], {("not-linearizable", FOREIGN): 1}), name


def test_a_deletion_without_a_reply_begins_an_unknown_history() -> None:
    verdicts = judged([(1, 2, "put", 40), (3, 3, "deleted?"), (5, 6, "put", 20)])
    assert verdicts[:2] == ([], {("not-linearizable", MAYBE_DELETED): 1})


def test_the_times_of_two_files_are_not_compared() -> None:
    judge = Judge()
    for row, fact in enumerate(facts([(1, 2, "put", 40), (3, 4, "put", 20)])):
        place, invoked = (place._replace(file=f"{row}") for place in (fact.place, fact.value.invoked))
        judge.fact(fact._replace(place=place, value=fact.value._replace(invoked=invoked)))
    assert judge.end()[:2] == ([], {("not-linearizable", TWO_CLOCKS): 1})


def test_a_version_has_one_value() -> None:
    first, second = facts([(1, 2, "put", 20), (3, 4, "read", 20)])
    judge = Judge()
    judge.fact(first)
    judge.fact(second._replace(value=second.value._replace(value="other")))
    (verdict,) = judge.end().broken
    assert (verdict.rule, verdict.expected, verdict.actual) == ("not-linearizable", "v20", "other")


def test_the_fewest_operations_are_found_among_many() -> None:
    rows: list[Row] = [(10 * at, 10 * at + 5, "put", at, at - 1 if at % 3 else None) for at in range(1, 2000)]
    rows += [(10 * at + 6, 10 * at + 7, "read", at) for at in range(1, 2000)]
    assert judged(rows).broken == []
    (verdict,) = judged([*rows, (10_008, 10_009, "read", 990)]).broken
    assert verdict.rule == "not-linearizable"
    assert len({place.record for place in verdict.places}) == 2


def test_a_search_that_is_cut_off_stays_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("segstore.wire.history.linearizable.MOST_STATES", 10)
    rows: list[Row] = [(1, 90, "set", number) for number in range(12)] + [(91, 92, "value", None)]
    assert judged(rows)[:2] == ([], {("not-linearizable", CUT_OFF): 1})
    assert MOST_STATES > 10


def stored(chance: random.Random) -> tuple[list[Row], bool]:
    """What clients see of one key in a table that works, and whether updates of others were not recorded.

    Some requests get no reply.
    """
    versions, current, rows, others = [GONE], GONE, [], False
    most = chance.choice((1.0, 0.8))
    for effect in sorted(chance.random() * 100 for _ in range(chance.randrange(3, 25))):
        start, end = int(effect - chance.random() * 30), int(effect + chance.random() * 30) + 1
        kind = chance.choice(("put", "put", "remove", "read"))
        expected = chance.choice((None, current, chance.choice(versions))) if kind != "read" else None
        is_lost, is_recorded = chance.random() < 0.2, chance.random() < most
        succeeds = kind != "read" and (expected is None or expected == current)
        if succeeds:
            current = versions[-1] + chance.randrange(1, 50) if kind == "put" else GONE
            versions += [current] * (kind == "put")
            others = others or not is_recorded
        if not is_recorded or (kind == "read" and is_lost):
            continue
        if kind == "read":
            rows.append((start, end, "read", current))
        elif succeeds or is_lost:
            update = (versions[-1], expected) if kind == "put" else (expected,)
            rows.append((start, start, f"{kind}?", *update) if is_lost else (start, end, kind, *update))
        else:
            rows.append((start, end, f"{kind}!", expected, GONE if current == GONE and chance.random() < 0.5 else None))
    return rows, others


def test_a_table_that_works_breaks_no_rule() -> None:
    chance = random.Random(3)
    decided = 0
    for _ in range(600):
        rows, others = stored(chance)
        verdicts = judged(rows)
        if not others or verdicts.unknown:
            assert verdicts.broken == [], rows
            decided += not others
    assert decided > 200
