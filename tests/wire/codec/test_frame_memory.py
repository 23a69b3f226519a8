"""`FrameMemory`: memory comes again when no view of it is left, and not before; how much is kept."""

from __future__ import annotations

from segstore.wire.codec import FrameMemory
from tests.looped import looped

AREA = 64 * 1024


def area(view: memoryview | None) -> object:
    """The memory that a view is of."""
    assert view is not None
    return view.obj


def test_memory_is_reused_when_no_view_of_it_is_left() -> None:
    memory = FrameMemory(longer_than=9)
    first = memory.take(100)
    part = first[50:]
    used = area(first)
    assert area(memory.take(100)) is not used
    del first
    part[0] = 7
    others = [memory.take(100) for _ in range(3)]
    assert used not in map(area, others)
    assert part[0] == 7
    del part, others
    assert area(memory.take(AREA)) is used, "any size that it has"
    longer = memory.take(AREA + 1)
    assert longer is not None
    assert len(longer) == AREA + 1
    assert area(longer) is not used


@looped(("size", "has_some"), [(0, False), (9, False), (10, True), (2 << 20, True), (3 << 20, False)])
def test_only_long_frames_of_a_bounded_size_get_some(size: int, has_some: bool) -> None:
    taken = FrameMemory(longer_than=9).take(size)
    assert (taken is not None) is has_some
    assert taken is None or len(taken) == size


def test_at_most_eight_areas_are_kept() -> None:
    memory = FrameMemory(longer_than=9)
    held = [memory.take(10) for _ in range(20)]
    areas = {id(area(each)) for each in held}
    assert len(areas) == 20
    last = [area(each) for each in held[-8:]]
    held.clear()
    found = [memory.take(10) for _ in range(8)]
    assert [area(each) for each in found] == last
