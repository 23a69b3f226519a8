"""Ids that differ from run to run: pairs those of one run with those of another, one to one.

Each run chooses its own ids of writers and transactions, and random parts of transient segments' names. They occur as
fields, in names and in data, as text with or without dashes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, Generic, TypeVar
from uuid import UUID

K = TypeVar("K")

_ID: Final = re.compile(r"[0-9a-fA-F]{32}|[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


def take_ids(text: str) -> tuple[str, list[str]]:
    """Splits a text into what is left without its ids, and the ids: 32 lower-case hexadecimal digits each."""
    return _ID.sub("*", text), [each.replace("-", "").lower() for each in _ID.findall(text)]


def put_ids(text: str, ids: Mapping[str, str]) -> str:
    """Replaces ids in a text, which keep their form. ids: as from `take_ids`, by the replaced ones."""

    def other(found: re.Match[str]) -> str:
        there = found[0]
        replaced = ids.get(there.replace("-", "").lower())
        return there if replaced is None else str(UUID(replaced)) if "-" in there else replaced

    return _ID.sub(other, text)


class Pairing(Generic[K]):
    """One-to-one pairs of keys of two runs. Attributes: right, left: the key of that run for one of the other."""

    def __init__(self) -> None:
        self.right: dict[K, K] = {}
        self.left: dict[K, K] = {}

    def fits(self, left: K, right: K) -> bool:
        """Whether two keys are paired with each other, or neither with any."""
        return self.right.get(left, right) == right and self.left.get(right, left) == left

    def pair(self, left: K, right: K) -> None:
        """Pairs two keys that fit."""
        self.right[left], self.left[right] = right, left
