"""What actions leave of a reply."""

from __future__ import annotations

from typing import Any

from segstore.server.faults import Rule
from segstore.server.faults.changes import changed, corrupted
from tests.looped import looped

FRAMES = [b"first", b"second"]


@looped(
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
)
def test_an_action_changes_the_frames_of_a_reply(do: Any, on_reply: bool, expected: list[bytes]) -> None:
    (action,) = Rule(do=do).do
    assert changed(FRAMES, action, on_reply=on_reply) == expected


@looped(("at", "expected"), [(-1, b"abb"), (0, b"`bc"), (2, b"abb"), (3, b"abc"), (-4, b"abc")])
def test_a_byte_is_changed_from_the_start_or_from_the_end(at: int, expected: bytes) -> None:
    assert corrupted(b"abc", at, 1) == expected
