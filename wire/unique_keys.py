"""Refuses a key that an object of JSON has twice: `json` keeps the last value without an error.

`unique` is an `object_pairs_hook` of `json.loads`.
"""

from __future__ import annotations

from typing import Any


class DuplicateKey(ValueError):
    """A key appears twice in an object. Attributes: key."""

    def __init__(self, key: str) -> None:
        super().__init__(f"the key {key!r} appears twice")
        self.key = key


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Returns an object of JSON. Raises DuplicateKey."""
    found = dict(pairs)
    if len(found) < len(pairs):
        for key, _ in pairs:
            if found.pop(key, pairs) is pairs:
                raise DuplicateKey(key)
    return found
