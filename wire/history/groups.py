"""Judges a reader group."""

from __future__ import annotations

from collections.abc import Iterator

from segstore.wire.history.facts import Broken, Fact, Key, Open


class GroupFold:
    """Judges a reader group."""

    def __init__(self, key: Key) -> None:
        self.key = key

    def see(self, fact: Fact) -> Iterator[Broken | Open]:
        """Takes the next fact."""
        return iter(())

    def end(self) -> Iterator[Broken | Open]:
        """Yields what only the whole history shows."""
        return iter(())
