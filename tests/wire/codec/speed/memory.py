"""Calls for which memory runs out."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["FAILED", "without_one_allocation"]

FAILED = object()
"""Stands for a MemoryError."""


def without_one_allocation(call: Callable[[], Any], times: int) -> Iterator[Any]:
    """Yields what a call returns when its first, second, … allocation fails; FAILED where it raises MemoryError."""
    testing = import_module("_testcapi")
    for allowed in range(times):
        testing.set_nomemory(allowed, allowed + 1)
        try:
            found = call()
        except MemoryError:
            found = FAILED
        finally:
            testing.remove_mem_hooks()
        yield found
