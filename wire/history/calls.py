"""Follows the controller calls of a trace: makes facts of transactions, streams and noted times."""

from __future__ import annotations

from collections.abc import Iterator

from segstore.wire.history.facts import Finding, Key, Place
from segstore.wire.trace import Record


class CallsFold:
    """Follows the controller calls of one trace, in order. key: ("calls", FILE)."""

    def __init__(self, key: Key) -> None:
        self.key = key

    def see(self, place: Place, record: Record) -> Iterator[Finding]:
        """Takes the next CALL record."""
        return iter(())

    def end(self) -> Iterator[Finding]:
        """Yields what the records leave open."""
        return iter(())
