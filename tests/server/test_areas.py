"""Memory that is used again once no view of it is held."""

import mmap

import pytest

from segstore.server import areas
from segstore.server.areas import HUGE_BYTES, Areas, has_views, new_memory
from tests.looped import looped


@pytest.fixture(params=[True, False], ids=["mapped", "allocated"], autouse=True)
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(areas, "_MAPPED", request.param and areas._MAPPED)


@looped("size", [1, 5_000, 64 * 1024, HUGE_BYTES, HUGE_BYTES + 5])
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
    some = Areas(100)
    first, second = some.take(), some.take()
    part, area = first[5:6], first.obj
    assert second.obj is not area
    first.release()
    assert some.take().obj is not area
    part.release()
    assert some.take().obj is area


def test_unused_areas_are_freed_but_for_two() -> None:
    some = Areas(100)
    held = [some.take() for _ in range(6)]
    some.trim()
    assert len(some._areas) == 6
    del held[:5]
    some.trim()
    assert len(some._areas) == 3
    assert held[0].obj in some._areas


def test_many_areas_in_use_are_used_again_too() -> None:
    some, held = Areas(100), list[memoryview]()
    seen = set()
    for _ in range(500):
        held.append(some.take())
        seen.add(id(held[-1].obj))
        del held[:-100]
    assert len(seen) <= 110
