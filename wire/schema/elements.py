"""Lazy sequences for long lists in a frame: each element is decoded on access.

A frame may hold a million table keys of a few bytes; as Python objects they would take many times the frame's memory.
Lists above `EAGER_ELEMENTS` are therefore validated when the frame is decoded, but kept as bytes: `Elements` decodes
each element on every access.

Invariant: an `Elements` has been validated to its end, so iterating over it never raises. Like payloads, it views the
buffer that it was decoded from and is valid as long.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, TypeVar, overload

EAGER_ELEMENTS = 4096
"""Lists up to this length are decoded eagerly, into tuples."""

T = TypeVar("T")


class Elements(Sequence[T]):
    """A read-only sequence that decodes during iteration. Equal to any sequence with the same elements.

    Access by index walks from the start.
    """

    __slots__ = ("_count", "_walk", "end")

    def __init__(self, walk: Callable[[], Iterable[tuple[T, int]]], count: int, end: int) -> None:
        """walk: yields each element with the position after it. end: the position after the last element."""
        self._walk = walk
        self._count = count
        self.end = end

    def column(self, index: int) -> Elements[Any]:
        """Returns one column of elements that are rows."""

        def walk() -> Iterator[tuple[Any, int]]:
            for row, end in self._walk():
                yield row[index], end  # type: ignore[index]  # rows, by the caller's choice

        return Elements(walk, self._count, self.end)

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[T]:
        for element, _ in self._walk():
            yield element

    @overload
    def __getitem__(self, index: int) -> T: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[T]: ...

    def __getitem__(self, index: int | slice) -> T | Sequence[T]:
        if isinstance(index, slice):
            start, stop, step = index.indices(self._count)
            if step < 0:
                return tuple(self)[index]
            return tuple(islice(self, start, max(start, stop), min(step, self._count + 1)))
        if not -self._count <= index < self._count:
            raise IndexError(f"element {index} of {self._count}")
        return next(islice(self, index % self._count, None))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, (Elements, tuple, list)):
            return NotImplemented
        return self._count == len(other) and all(mine == theirs for mine, theirs in zip(self, other, strict=True))

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return f"<{self._count} elements>"
