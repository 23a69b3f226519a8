"""Placement of unowned containers: the store that reports the least load takes each (seed 57.6).

Pure functions over reports: all stores deal the same containers out in the same way, so each knows which are its own
to take and after how many others its turn comes if those do not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec


class LoadReport(msgspec.Struct, frozen=True):
    """What a store says of itself.

    host, port: where its clients connect. containers: how many it owns. bytes_per_s: appended and read, since the
    last report. connections: open now.
    """

    host: str = ""
    port: int = 0
    containers: int = 0
    bytes_per_s: float = 0.0
    connections: int = 0

    def encode(self) -> bytes:
        return _ENCODER.encode(self)

    @classmethod
    def decode(cls, data: bytes) -> LoadReport:
        """Raises msgspec.MsgspecError for what is no report."""
        return _DECODER.decode(data)


_ENCODER: Final = msgspec.json.Encoder()
_DECODER: Final = msgspec.json.Decoder(LoadReport)


def turn(store: str, container: int, unowned: Iterable[int], reports: Mapping[str, LoadReport]) -> int:
    """How many stores come before `store` when `container` is taken; 0 for the one whose it is to be.

    The unowned containers are dealt out one by one, each to the store that has least by then.
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
    raise AssertionError("the container is among those dealt out")


def surplus(owned: int, containers: int, stores: int) -> int:
    """How many a store is to give up: what it has above the larger part of an even share."""
    return max(0, owned - -(-containers // max(stores, 1)))
