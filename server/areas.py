"""Memory that is used again once no view of it is held.

`bytearray` and `mmap` count their exports and refuse to change size while there are any. This is how reuse is decided;
holders of views release nothing.
"""

from __future__ import annotations

import mmap
import sys
from collections import deque
from contextlib import suppress
from typing import Final

Memory = bytearray | mmap.mmap

HUGE_BYTES: Final = 2 * 1024 * 1024
_MAPPED: Final = sys.platform == "linux"
"""Whether memory is mapped: other systems can neither request huge pages nor detect views of a map."""
MAPPED_BYTES: Final = 64 * 1024
"""Size from which memory is mapped. Less is cleared when it is allocated."""
LOOK_AT: Final = 4
"""Number of areas tried before a new area is allocated, so that held views do not slow callers."""
_IDLE: Final = 2


def new_memory(size: int) -> Memory:
    """Returns memory with arbitrary content; in huge pages if it consists of whole ones and the system has them."""
    if not _MAPPED or size < MAPPED_BYTES:
        return bytearray(size)
    try:
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError:  # no memory, or the process has too many maps
        return bytearray(size)
    if size % HUGE_BYTES == 0:
        with suppress(OSError):  # a kernel without huge pages uses small ones
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


def has_views(memory: Memory) -> bool:
    """Whether a view is held. Nothing is reallocated, because the size stays the same or within the allocation."""
    try:
        if isinstance(memory, bytearray):
            memory.append(memory.pop())
        else:
            memory.resize(len(memory))
    except BufferError:
        return True
    return False


class Areas:
    """Memory in areas of one size, above 0. `trim` frees idle areas."""

    __slots__ = ("_areas", "_size")

    def __init__(self, size: int) -> None:
        self._size = size
        self._areas: deque[Memory] = deque()
        """The area taken last comes last."""

    def take(self) -> memoryview:
        """Returns a view of a whole area, with arbitrary content and without other views."""
        areas = self._areas
        for index in range(min(LOOK_AT, len(areas))):
            if not has_views(areas[index]):
                area = areas[index]
                del areas[index]
                break
        else:
            area = new_memory(self._size)
        areas.append(area)
        return memoryview(area)

    def trim(self) -> None:
        """Frees areas without views, but for two."""
        idle = [area for area in self._areas if not has_views(area)]
        for idle_area in idle[:-_IDLE]:
            self._areas.remove(idle_area)
