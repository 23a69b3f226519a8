"""Selection of the first N names in sorted order, to fit one response."""

from __future__ import annotations

from bisect import insort
from typing import AnyStr, Final, Generic

_MOST_BYTES: Final = 256 * 1024
_ENTRY_BYTES: Final = 100
"""Approximate size of an entry in a response, without its name."""


class First(Generic[AnyStr]):
    """Keeps the lowest added names: at most `limit`, and at most `_MOST_BYTES` in total, but at least one name.

    Attributes:
        names: sorted, without gaps: all omitted names are above the last name.
        left_out: whether names were omitted.
    """

    def __init__(self, limit: int) -> None:
        self.names: list[AnyStr] = []
        self.left_out = False
        self._limit = limit
        self._bytes = 0

    def add(self, name: AnyStr) -> None:
        names = self.names
        if self.left_out and name > names[-1]:
            return
        insort(names, name)
        self._bytes += len(name) + _ENTRY_BYTES
        while len(names) > 1 and (len(names) > self._limit or self._bytes > _MOST_BYTES):
            self._bytes -= len(names.pop()) + _ENTRY_BYTES
            self.left_out = True
