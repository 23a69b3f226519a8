"""Events as they are stored: framed, and split again. `test_shortcuts.py` of the extension compares C and Python."""

from typing import Any

from segstore.wire import Event, encode
from segstore.wire.blocks import frame_header, framed, split_events
from tests.looped import looped


@looped("sizes", [[0], [5], [5, 5, 5], [5, 0, 300], [5_000], [4_095, 4_096], [5_000, 5_000]])
def test_events_are_framed_as_the_codec_encodes_them_and_large_ones_are_not_copied(sizes: list[int]) -> None:
    events = [bytes([65 + at]) * size for at, size in enumerate(sizes)]
    parts = framed(list(events))
    assert b"".join(parts) == b"".join(encode(Event(event)) for event in events)
    assert all(any(part is event for part in parts) for event in events if len(event) >= 4_096)
    out: list[Any] = []
    data = b"".join(parts) + frame_header(9) + b"cut"
    assert split_events(data, 0, 10_000, 7, lambda event, offset, _: (event, offset), None, out) == len(data) - 11
    assert [event for event, _ in out] == events
    assert out[0][1] == 7
