from __future__ import annotations

from collections.abc import Iterator

from segstore.wire import Hello, encode
from segstore.wire.history import FOLDS, Fact, Judge, Key, Place, first_fold, first_key, judge, placed
from segstore.wire.history.facts import Acked, Read, Sent
from segstore.wire.trace import Direction, Record, RecordKind


def records() -> Iterator[Record]:
    """Yields two connections, one of which ends with bytes that form no frame."""
    for connection in (1, 2):
        yield Record(connection, connection, Direction.REQUEST, RecordKind.OPEN, b"{}")
        yield Record(connection, connection, Direction.REQUEST, RecordKind.FRAME, encode(Hello(17, 5)))
    yield Record(9, 2, Direction.REQUEST, RecordKind.BYTES, b"nonsense")
    yield Record(9, 2, Direction.REQUEST, RecordKind.CLOSE, b"{}")
    yield Record(9, 0, Direction.REQUEST, RecordKind.CALL, b"no call")


def test_a_record_belongs_to_its_connection_or_to_the_calls_of_its_file() -> None:
    keys = [first_key(place, record) for place, record in placed(records(), "f")]
    assert keys[0] == Key("connection", "f:1")
    assert keys[-1] == Key("calls", "f")
    assert {type(first_fold(key, [])).__name__ for key in keys} == {"ConnectionFold", "CallsFold"}


def test_a_clock_that_is_set_back_keeps_the_order_of_its_file() -> None:
    set_back = (record._replace(ts_ns=9 - number) for number, record in enumerate(records()))
    assert {place.time_ns for place, _ in placed(set_back)} == {9}


def test_verdicts_come_in_the_order_of_their_last_records() -> None:
    verdicts = judge(placed(records()))
    assert verdicts.records == 7
    assert [verdict.rule for verdict in verdicts.broken] == ["frames-only"]
    assert list(verdicts.by_rule) == ["frames-only"]


def test_a_connection_may_end_in_the_middle_of_a_frame() -> None:
    cut = (record._replace(data=b"half") if record.kind is RecordKind.BYTES else record for record in records())
    why = "the connection or the recording ended in the middle of a frame"
    assert judge(placed(cut))[:2] == ([], {("frames-only", why): 1})


def test_facts_of_histories_are_judged_without_records() -> None:
    place = Place("", 0, 0, 1, 0)
    whole = Judge()
    key = Key("segment", "s/t/0.#epoch.0")
    for number, value in enumerate(
        (
            Sent(key.name, "w", 1, 1, b"\x00\x00\x00\x00\x00\x00\x00\x01a"),
            Acked(key.name, "w", 2, 9, "", place),
            Read(key.name, 0, b"", is_end=False, asked=place),
        )
    ):
        whole.fact(Fact(key, place._replace(record=number, time_ns=number), value))
    assert [verdict.rule for verdict in whole.end().broken] == ["ack-beyond"]


def test_facts_are_ordered_by_time_and_place() -> None:
    facts = [Fact(Key("log", "s"), Place("f", 0, record, 0, time), None) for time, record in ((1, 2), (1, 1), (0, 9))]
    assert [fact.place.record for fact in sorted(facts, key=lambda fact: fact.place.order)] == [9, 1, 2]
    assert FOLDS.keys() == {"segment", "register", "transaction", "group", "positions", "log", "stream"}
