"""Memory that is used again once no view of it is held."""

from __future__ import annotations

import mmap

import pytest

from segstore.server import memory
from segstore.server.memory import HUGE_BYTES, Areas, has_views, new_memory


@pytest.fixture(params=[True, False], ids=["mapped", "allocated"], autouse=True)
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_MAPPED", request.param and memory._MAPPED)


@pytest.mark.parametrize("size", [1, 5_000, 64 * 1024, HUGE_BYTES, HUGE_BYTES + 5])
def test_memory_has_its_size_and_knows_of_its_views(size: int) -> None:
    made = new_memory(size)
    assert len(made) == size
    assert not has_views(made)
    whole = memoryview(made)
    part = whole[:1]
    whole.release()
    assert has_views(made)
    part.release()
    assert not has_views(made)
    assert len(made) == size


def test_without_room_for_another_map_memory_is_allocated(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> mmap.mmap:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(mmap, "mmap", refused)
    made = new_memory(HUGE_BYTES)
    assert isinstance(made, bytearray)
    assert len(made) == HUGE_BYTES


def test_an_area_is_taken_again_only_when_no_view_of_it_is_held() -> None:
    areas = Areas(100, 8)
    first, second = areas.take(), areas.take()
    part, area = first[5:6], first.obj
    assert second.obj is not area
    first.release()
    assert areas.take().obj is not area
    part.release()
    assert areas.take().obj is area


def test_areas_that_nobody_uses_are_freed_but_for_a_few() -> None:
    areas = Areas(100, 8)
    held = [areas.take() for _ in range(6)]
    kept = {id(each.obj) for each in held}
    held.clear()
    again = [areas.take() for _ in range(6)]
    assert len({id(each.obj) for each in again}) == 6
    assert 2 <= len(kept & {id(each.obj) for each in again}) < 6


def test_areas_beyond_the_most_are_not_kept() -> None:
    areas = Areas(100, 3)
    held = [areas.take() for _ in range(9)]
    assert len({id(each.obj) for each in held}) == 9
    assert len(areas._areas) == 3
