"""Long calls run in steps, so that other calls and connections are served in between."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from typing import Final, Generic, TypeVar

T = TypeVar("T")

_STEP: Final = 256
"""A segment of a stream takes about 50 µs."""


class InSteps(Generic[T]):
    """Items for `async for`, `_STEP` of them in a loop iteration. Unlike a generator, it can be left at any item."""

    def __init__(self, items: Iterable[T]) -> None:
        self._items: Iterator[T] = iter(items)
        self._count = 0

    def __aiter__(self) -> InSteps[T]:
        return self

    async def __anext__(self) -> T:
        for item in self._items:
            self._count += 1
            if self._count % _STEP == 0:
                await asyncio.sleep(0)
            return item
        raise StopAsyncIteration
