"""Calls that keep no memory, and calls for which memory runs out."""

from __future__ import annotations

import gc
import sys
import tracemalloc
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

__all__ = ["FAILED", "check_nothing_is_kept", "without_one_allocation"]

FAILED = object()
"""Stands for a MemoryError."""


def check_nothing_is_kept(use: Callable[[], Any], watched: Iterable[object]) -> None:
    """Checks that calls keep no memory, and no reference to the watched objects."""
    for _ in range(3):
        use()
    gc.collect()
    own = [value for value in watched if sys.getrefcount(value) < 500]  # other code uses the rest, too
    before = [sys.getrefcount(value) for value in own]
    tracemalloc.start()
    try:
        use()
        start = tracemalloc.get_traced_memory()[0]
        for _ in range(30):
            use()
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] - start < 20_000
    finally:
        tracemalloc.stop()
    assert [sys.getrefcount(value) for value in own] == before


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
