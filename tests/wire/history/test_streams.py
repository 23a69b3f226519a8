from __future__ import annotations

import pytest

from tests.wire.history.support import broken, judged_lines


def send(process: str, event: str, segment: str) -> str:
    value = f'{{"segment": "{segment}", "event": "{event}", "stream": "x", "key": "k"}}'
    return f"{process} send {value}\n"


def poll(event: str, segment: str) -> str:
    return f'r poll {{"segment": "{segment}", "stream": "x", "key": "k"}} → ok {{"events": ["{event}"]}}\n'


@pytest.mark.parametrize(
    ("first", "second", "rules"), [(("a", "1"), ("b", "2"), {}), (("b", "2"), ("a", "1"), {"key-order": 1})]
)
def test_a_key_keeps_its_order_across_segments(
    first: tuple[str, str], second: tuple[str, str], rules: dict[str, int]
) -> None:
    assert broken(send("w", "a", "1") + send("w", "b", "2") + poll(*first) + poll(*second)) == rules


@pytest.mark.parametrize(("lower", "rules"), [(100, {}), (101, {"window-over-event": 1})])
def test_a_window_closes_before_all_noted_times(lower: int, rules: dict[str, int]) -> None:
    noted = "".join(
        f'{who} note-time {{"stream": "x", "timestamp": {time}}}\n' for who, time in (("v", 100), ("w", 120))
    )
    assert broken(noted + f'r window {{"stream": "x", "lower": {lower}}}') == rules


NOTE = '{} note-time {{"stream": "x", "timestamp": {}}}\n'
WINDOW = 'r window {{"stream": "x", "lower": {}}}\n'


@pytest.mark.parametrize(
    ("history", "rules"),
    [
        (NOTE.format("v", 150) + WINDOW.format(150) + NOTE.format("w", 100) + WINDOW.format(150), {}),
        (NOTE.format("v", 150) + NOTE.format("w", 100) + WINDOW.format(150), {}),
        (NOTE.format("v", 150) + NOTE.format("w", 100) + WINDOW.format(151), {"window-over-event": 1}),
        (NOTE.format("w", 100) + NOTE.format("w", 200).strip() + " → info\n" + WINDOW.format(150), {}),
        (NOTE.format("w", 100) + NOTE.format("w", "null") + NOTE.format("v", 200) + WINDOW.format(150), {}),
    ],
)
def test_a_window_may_be_older_than_a_writer(history: str, rules: dict[str, int]) -> None:
    assert broken(history) == rules


@pytest.mark.parametrize(("time", "count"), [(200, 0), (110, 1)])
def test_a_time_that_is_noted_while_the_window_is_read_may_count(time: int, count: int) -> None:
    notes = [{"process": "w", "f": "note-time", "value": {"stream": "x", "timestamp": noted}} for noted in (100, time)]
    window = {"process": "r", "f": "window", "value": {"stream": "x", "lower": 150}}
    steps = [(notes[0], "invoke"), (notes[0], "ok"), (window, "invoke"), (notes[1], "invoke"), (window, "ok")]
    assert len(judged_lines([{"type": end, **line} for line, end in steps]).broken) == count


def test_an_event_that_is_sent_twice_or_in_a_transaction_has_no_order_of_its_key() -> None:
    moved = poll("a", "1").replace('"key": "k"}', '"key": "k", "moved": true}')
    twice = send("w", "a", "1") + send("w", "b", "2") + send("w", "a", "1")
    assert not broken(twice + poll("b", "2") + poll("a", "1"))
    assert not broken(send("w", "a", "1") + send("w", "b", "2") + poll("b", "2") + moved)
    inside = send("w", "a", "1").replace("}", ', "transaction": "t"}')
    commit = 'w commit {"transaction": "t", "segments": ["1"]}\n'
    assert not broken(inside + send("w", "b", "2") + commit + poll("b", "2") + poll("a", "1"))
