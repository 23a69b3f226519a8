from __future__ import annotations

import pytest

from tests.wire.history.support import broken


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
