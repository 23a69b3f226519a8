from __future__ import annotations

import json

import pytest

from tests.wire.history.support import broken, judged, judged_lines, lines_of

SENT = """
    w send {"segment": "s", "event": "a"} → ok {"offset": 0}
    w send {"segment": "s", "event": "b"} → ok {"offset": 5}
    w send {"segment": "s", "event": "c"} → ok {"offset": 9}
"""
READ = 'r poll {{"segment": "s"}} → ok {{"events": {}}}'


@pytest.mark.parametrize(
    ("events", "rules"),
    [
        ('[[0, "a"], [5, "b"], [9, "c"]]', {}),
        ('[[0, "a"]]', {}),
        ('["a", "b", "c"]', {}),
        ('[[0, "a"], [9, "c"]]', {"lost-write": 1, "poll-skip": 1}),
        ('["c"]', {}),
        ('[[0, "a"], [5, "b"], [9, "x"]]', {"garbage-read": 1, "inconsistent-offsets": 1}),
        ('[[0, "a"], [5, "b"], [0, "a"], [5, "b"]]', {"nonmonotonic-poll": 1}),
        ('[[0, "a"], [5, "b"], [9, "c"], [12, "c"]]', {"duplicate": 1}),
        ('["a", "b", "b"]', {"duplicate": 1}),
        ('[[5, "b"]]', {}),
        ('[[-9, "old"], [0, "a"], [5, "b"]]', {}),
        ('["old", "a", "foreign"]', {"garbage-read": 1}),
    ],
)
def test_reads_of_one_writers_events(events: str, rules: dict[str, int]) -> None:
    assert broken(SENT + READ.format(events)) == rules


def test_a_later_event_of_the_same_writer_shows_that_an_event_is_lost() -> None:
    sent = SENT.replace('{"offset": 0}', "{}").replace('{"offset": 5}', "{}").replace('{"offset": 9}', "{}")
    assert broken(sent + READ.format('["a", "c"]')) == {"lost-write": 1}
    verdicts = judged(sent + READ.format('["a"]'))
    assert not verdicts.broken
    assert verdicts.unknown == {("lost-write", "no reader has read past it"): 2}


def test_sends_that_failed_or_are_undecided() -> None:
    failed = 'w send {"segment": "s", "event": "a"} → fail\n'
    assert broken(failed + READ.format('["a"]')) == {"garbage-read": 1}
    again = failed + 'w send {"segment": "s", "event": "a"}\n'
    assert broken(again + READ.format('["a", "a"]')) == {"duplicate": 1}
    assert "was sent once, and is stored 2 times" in judged(again + READ.format('["a", "a"]')).broken[0].text
    undecided = 'w send {"segment": "s", "event": "a"} → info\n'
    assert not broken(undecided + READ.format('["a"]'))
    assert not broken(undecided + READ.format("[]"))


def test_events_in_another_order_than_their_writer_sent_them() -> None:
    sent = """
        w send {"segment": "s", "event": "a"}
        w send {"segment": "s", "event": "b"}
    """
    assert broken(sent + READ.format('[[0, "b"], [5, "a"]]')) == {"reordered": 1}
    two = sent.replace('w send {"segment": "s", "event": "b"}', 'v send {"segment": "s", "event": "b"}')
    assert not broken(two + READ.format('[[0, "b"], [5, "a"]]'))
    undecided = sent.replace('"a"}', '"a"} → info')
    assert not broken(undecided + READ.format('[[0, "b"], [5, "a"]]'))


def poll(events: str, reader: str = "r", fields: str = "", outcome: str = "ok") -> str:
    return f'{reader} poll {{"segment": "s"{fields}}} → {outcome} {{"events": {events}}}\n'


def moved(events: str) -> str:
    return poll(events, fields=', "moved": true')


A, B, C = '[[0, "a"]]', '[[5, "b"]]', '[[9, "c"]]'


@pytest.mark.parametrize(
    ("reads", "rules"),
    [
        (poll(C) + moved(A) + poll(B) + moved(C), {}),
        (poll(B) + moved("[]") + poll(A), {}),
        (poll('["a", "b"]') + moved('["a", "b"]'), {}),
        (poll(A) + 'r release {"group": "g", "segment": "s"}\n' + poll(B, "q") + poll(C), {}),
        (poll(A) + poll(B, "q") + poll(C), {}),
        (poll(B) + 'r leave {"group": "g"}\n' + poll(A) + poll(B), {}),
        (poll(B) + poll("[]", outcome="info") + poll(A), {}),
        (poll(B) + poll(A), {"nonmonotonic-poll": 1}),
    ],
)
def test_a_reader_may_go_back_and_skip_only_if_it_was_moved(reads: str, rules: dict[str, int]) -> None:
    assert broken(SENT + reads) == rules


def test_the_order_of_two_polls_at_the_same_time_is_not_known() -> None:
    def polled(process: str, events: str) -> list[dict[str, object]]:
        value = {"segment": "s", "reader": "r", "events": json.loads(events)}
        return [{"type": end, "process": process, "f": "poll", "value": value} for end in ("invoke", "ok")]

    first, second, third = polled("1", A), polled("2", B), polled("3", C)
    sent = map(json.loads, lines_of(SENT))
    assert not judged_lines([*sent, first[0], *second, first[1], *third]).broken


def test_an_event_that_is_read_before_its_send_is_foreign_and_an_older_one_is_unknown() -> None:
    send = '\nw send {"segment": "s", "event": "a"}'
    assert broken(READ.format('["a"]') + send) == {"garbage-read": 1}
    for history in (READ.format('["old", "older"]') + send, READ.format('["old", "older"]')):
        verdicts = judged(history)
        assert not verdicts.broken
        assert verdicts.unknown["garbage-read", "the event may be older than the history"] == 2


def test_an_event_that_is_a_list_has_its_offset_beside_it() -> None:
    sent = """
        w send {"segment": "s", "event": [1, 2]} → ok {"offset": 0}
        w send {"segment": "s", "event": [3, [4]]} → ok {"offset": 5}
    """
    assert not broken(sent + 'r poll {"segment": "s", "events": [[1, 2], [3, [4]]], "offsets": [0, 5]}')
    assert not broken(sent + READ.format("[[3, [4]]]"))
    verdicts = broken(sent + 'r poll {"segment": "s", "events": [[3, [4]], [1, 2]], "offsets": [0, 5]}')
    assert verdicts["inconsistent-offsets"] == 2


@pytest.mark.parametrize(
    ("steps", "rules"),
    [
        ("COMMIT\nREAD", {}),
        ("READ\nCOMMIT", {"precommitted-read": 2}),
        ("ABORT\nREAD", {"aborted-read": 2}),
        ("ABORT", {}),
        ("COMMIT → info\nREAD", {}),
        ("COMMIT → info\nREAD\nCOMMIT", {}),
        ("COMMIT\nHALF", {"partial-transaction": 1}),
        ("ABORT\nOTHER", {}),
        ("COMMIT → fail\nREAD", {"precommitted-read": 2}),
    ],
)
def test_transactions(steps: str, rules: dict[str, int]) -> None:
    events = """
        w send {"segment": "s", "event": "x"}
        w send {"segment": "s", "event": "a", "transaction": "t"} → ok {"offset": 0}
        w send {"segment": "s", "event": "b", "transaction": "t"}
        v send {"segment": "s", "event": "c"}
    """
    for name, operation in {
        "COMMIT": 'w commit {"transaction": "t", "segments": ["s"]}',
        "ABORT": 'w abort {"transaction": "t", "segments": ["s"]}',
        "READ": READ.format('[[0, "a"], [3, "b"]]'),
        "HALF": READ.format('[[0, "x"], [3, "b"]]'),
        "OTHER": READ.format('[[0, "c"]]'),
    }.items():
        steps = steps.replace(name, operation)
    assert broken(events + steps) == rules
