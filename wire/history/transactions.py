"""Judges the steps of one transaction, as its clients and the controller report them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from segstore.wire.history.facts import Broken, Fact, Key, Open, Place

_OUTCOMES: Final = {"committing": "committed", "committed": "committed", "aborting": "aborted", "aborted": "aborted"}


class TransactionFold:
    """Takes `Transaction` facts. A commit or abort that was accepted is an outcome, too: it is applied later."""

    def __init__(self, key: Key) -> None:
        self.key = key
        self._outcomes: dict[str, tuple[str, Place]] = {}

    def see(self, fact: Fact) -> Iterator[Broken | Open]:
        outcome = _OUTCOMES.get(fact.value.what)
        if outcome is None:
            return
        other = self._outcomes.get("aborted" if outcome == "committed" else "committed")
        if other is not None and outcome not in self._outcomes:
            text = f"transaction {self.key.name} was reported as {other[0]}, then as {fact.value.what}"
            yield Broken("two-outcomes", self.key, (other[1], fact.place), text, other[0], fact.value.what)
        self._outcomes.setdefault(outcome, (fact.value.what, fact.place))

    def end(self) -> Iterator[Broken | Open]:
        """Yields nothing: a second outcome is found when it comes."""
        return iter(())
