"""Memory in which decoders receive long frames without a copy. Reused, so that its pages are mapped once.

Invariant: memory is reused only when no view of it is left. `bytearray` counts its exports and refuses to change size
while there are any. This is how reuse is decided; callers release nothing.
"""

from __future__ import annotations

from collections import deque
from typing import Final

_KEPT: Final = 8
_ROUND_BYTES: Final = 64 * 1024
_LONGEST_BYTES: Final = 2 * 1024 * 1024 + 128 * 1024
"""The longest reply to a read has 2 MiB of data and a segment name of up to 64 KiB."""


class FrameMemory:
    """The memory of all decoders that share it: at most 8 pooled areas of at most 2.1 MiB, and older areas in use.

    longer_than: shorter frames get no area.
    """

    def __init__(self, longer_than: int) -> None:
        self._longer_than = longer_than
        self._kept: deque[bytearray] = deque(maxlen=_KEPT)

    def take(self, size: int) -> memoryview | None:
        """Returns a view of `size` bytes of arbitrary content; None if a frame of this size is short or too long."""
        if not self._longer_than < size <= _LONGEST_BYTES:
            return None
        for memory in self._kept:
            if len(memory) >= size and not _has_views(memory):
                break
        else:
            memory = bytearray(-(-size // _ROUND_BYTES) * _ROUND_BYTES)
            self._kept.append(memory)
        return memoryview(memory)[:size]


def _has_views(memory: bytearray) -> bool:
    """Whether a view is held. Nothing is reallocated, because the size stays within the allocation."""
    try:
        memory.append(memory.pop())
    except BufferError:
        return True
    return False
