from __future__ import annotations

import pytest

from tests.wire.history.support import broken, judged

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
    ],
)
def test_reads_of_one_writers_events(events: str, rules: dict[str, int]) -> None:
    assert broken(SENT + READ.format(events)) == rules


def test_a_later_event_of_the_same_writer_shows_that_an_event_is_lost() -> None:
    sent = SENT.replace('{"offset": 0}', "{}").replace('{"offset": 5}', "{}").replace('{"offset": 9}', "{}")
    assert broken(sent + READ.format('["a", "c"]')) == {"lost-write": 1}
    verdicts = judged(sent + READ.format('["a"]'))
    assert not verdicts.broken
    assert verdicts.unknown == {("lost-write", "nobody read so far"): 2}


def test_sends_that_failed_or_are_undecided() -> None:
    failed = 'w send {"segment": "s", "event": "a"} → fail\n'
    assert broken(failed + READ.format('["a"]')) == {"garbage-read": 1}
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


def test_a_reader_that_was_moved_may_go_back_and_skip() -> None:
    reads = """
        r poll {"segment": "s"} → ok {"events": [[9, "c"]]}
        r poll {"segment": "s", "moved": true} → ok {"events": [[0, "a"], [5, "b"]]}
        r poll {"segment": "s", "moved": true} → ok {"events": [[9, "c"]]}
    """
    assert not broken(SENT + reads)


@pytest.mark.parametrize(
    ("steps", "rules"),
    [
        ("COMMIT\nREAD", {}),
        ("READ\nCOMMIT", {"precommitted-read": 2}),
        ("ABORT\nREAD", {"aborted-read": 2}),
        ("ABORT", {}),
        ("COMMIT → info\nREAD", {}),
        ("COMMIT\nHALF", {"partial-transaction": 1}),
        ("COMMIT → fail\nREAD", {"precommitted-read": 2}),
    ],
)
def test_transactions(steps: str, rules: dict[str, int]) -> None:
    events = """
        w send {"segment": "s", "event": "a", "transaction": "t"}
        w send {"segment": "s", "event": "b", "transaction": "t"}
    """
    for name, operation in {
        "COMMIT": 'w commit {"transaction": "t", "segments": ["s"]}',
        "ABORT": 'w abort {"transaction": "t", "segments": ["s"]}',
        "READ": READ.format('[[0, "a"], [3, "b"]]'),
        "HALF": READ.format('["b"]').replace("r poll", "r poll"),
    }.items():
        steps = steps.replace(name, operation)
    if "partial-transaction" in rules:
        events = events.replace('"a", "transaction": "t"}', '"a", "transaction": "t"} → ok {"offset": 0}')
        steps = steps.replace('["b"]', '[[3, "b"]]')
    assert broken(events + steps) == rules
