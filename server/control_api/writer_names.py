"""Registered writer names, and the mapping of writer ids to them (79.8).

This project's client appends to a segment with the writer id uuid5(name, segment), so the name of a writer id is found
by trying all registered names. The writer's count keeps the name.

Invariants: at most `max_names` names; a name is registered once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator

from segstore.server.connection import WriterCount
from segstore.wire.names import writer_id

_AT_ONCE = 500


class WriterNames:
    """The registered names, in the order of their registration."""

    def __init__(self, max_names: int = 10_000) -> None:
        self.max_names = max_names
        self._names: dict[str, None] = {}

    def __iter__(self) -> Iterator[str]:
        return iter(tuple(self._names))

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def add(self, name: str) -> bool:
        """Registers a name; returns whether it is new. Raises ValueError at the limit of names."""
        if name in self._names:
            return False
        if len(self._names) >= self.max_names:
            raise ValueError(f"{self.max_names} writer names are registered, which is the limit; remove some first")
        self._names[name] = None
        return True

    def remove(self, name: str, counts: Iterable[WriterCount]) -> None:
        """Removes a name, also from the counts that it was found for. Raises KeyError."""
        del self._names[name]
        for count in counts:
            if count.name == name:
                count.name = None

    async def find(self, segment: str, counts: dict[bytes, WriterCount]) -> None:
        """Finds names for a segment's counts without a name. Yields to the loop regularly."""
        nameless = sum(count.name is None for count in counts.values())
        for done, name in enumerate(tuple(self._names), 1):
            if not nameless:
                return
            writer = counts.get(writer_id(name, segment).bytes)
            if writer is not None and writer.name is None and name in self._names:
                writer.name = name
                nameless -= 1
            if done % _AT_ONCE == 0:
                await asyncio.sleep(0)
