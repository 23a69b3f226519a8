"""Registered writer names, and the mapping of writer ids to them (79.8).

This project's client appends to a segment with the writer id uuid5(name, segment), so the name of a writer id is found
by trying all registered names. The writer's count keeps the name.

Invariants: at most `MOST_NAMES` names; a name is registered once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from segstore.server.connection import WriterCount
from segstore.wire.names import writer_id

MOST_NAMES = 10_000
_AT_ONCE = 500


class WriterNames(dict[str, None]):
    """The registered names, in the order of their registration."""

    def add(self, name: str) -> None:
        """Registers a name, unless it is registered. Raises ValueError at the limit of names."""
        if name not in self and len(self) >= MOST_NAMES:
            raise ValueError(f"{MOST_NAMES} writer names are registered, which is the limit; remove some first")
        self.setdefault(name)

    def remove(self, name: str, counts: Iterable[WriterCount]) -> None:
        """Removes a name, also from the counts that it was found for. Raises KeyError."""
        del self[name]
        for count in counts:
            if count.name == name:
                count.name = None

    async def find(self, segment: str, counts: dict[bytes, WriterCount]) -> None:
        """Finds names for a segment's counts without a name. Yields to the loop regularly."""
        nameless = sum(count.name is None for count in counts.values())
        for done, name in enumerate(tuple(self), 1):
            if not nameless:
                return
            writer = counts.get(writer_id(name, segment).bytes)
            if writer is not None and writer.name is None and name in self:
                writer.name = name
                nameless -= 1
            if done % _AT_ONCE == 0:
                await asyncio.sleep(0)
