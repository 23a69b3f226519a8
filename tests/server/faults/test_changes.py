"""What actions leave of a reply."""

from __future__ import annotations

from typing import Any

import pytest

from segstore.server.faults import Rule
from segstore.server.faults.changes import changed, corrupted

FRAMES = [b"first", b"second"]


@pytest.mark.parametrize(
    ("do", "on_reply", "expected"),
    [
        ("ok", False, FRAMES),
        ("drop reply", False, []),
        ("duplicate", False, FRAMES),
        ("duplicate", True, [b"first", b"first", b"second", b"second"]),
        ("duplicate reply", False, [b"first", b"first", b"second", b"second"]),
        ({"truncate": 3}, False, [b"fir", b"sec"]),
        ({"corrupt": 0, "xor": 1}, False, [b"girst", b"recond"]),
    ],
    ids=str,
)
def test_an_action_changes_the_frames_of_a_reply(do: Any, on_reply: bool, expected: list[bytes]) -> None:
    (action,) = Rule(do=do).do
    assert changed(FRAMES, action, on_reply=on_reply) == expected


@pytest.mark.parametrize(("at", "expected"), [(-1, b"abb"), (0, b"`bc"), (2, b"abb"), (3, b"abc"), (-4, b"abc")])
def test_a_byte_is_changed_from_the_start_or_from_the_end(at: int, expected: bytes) -> None:
    assert corrupted(b"abc", at, 1) == expected
