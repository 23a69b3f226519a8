"""Placement of unowned containers: the store that reports the least load takes each (seed 57.6).

Pure functions of the reports: all stores compute the same distribution, so each knows which containers to take, and how
many other stores come before it for the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec


class LoadReport(msgspec.Struct, frozen=True):
    """The load of a store.

    containers: number of owned containers. bytes_per_s: appended and read since the last report. connections: number of
    open connections.
    """

    containers: int = 0
    bytes_per_s: float = 0.0
    connections: int = 0


def turn(store: str, container: int, unowned: Iterable[int], reports: Mapping[str, LoadReport]) -> int:
    """Returns how many stores come before `store` in the order for `container`; 0 for the store that should take it.

    The unowned containers are assigned in turn to the store with the least load at that point.
    """
    counts = {name: report.containers for name, report in reports.items()}
    counts.setdefault(store, 0)

    def load(name: str) -> tuple[int, float, int, str]:
        report = reports.get(name, LoadReport())
        return counts[name], report.bytes_per_s, report.connections, name

    for each in sorted({*unowned, container}):
        order = sorted(counts, key=load)
        if each == container:
            return order.index(store)
        counts[order[0]] += 1
    raise AssertionError("the container is among those distributed")


def surplus(owned: int, containers: int, stores: int) -> int:
    """Returns how many containers a store should give up: those above an even share, rounded up."""
    return max(0, owned - -(-containers // max(stores, 1)))
