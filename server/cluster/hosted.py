"""The adapter through which container ownership drives a segment store.

A released container's waiting requests are answered at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from segstore.server.coordination import LoadReport
from segstore.server.store import Container

if TYPE_CHECKING:
    from segstore.server.node import SegmentStoreServer


class HostedStore:
    """`Hosted` for a `SegmentStoreServer`."""

    def __init__(self, server: SegmentStoreServer) -> None:
        self._server = server
        self._bytes = 0
        self._at_s = time.monotonic()

    def own(self, container_id: int, container: Container | None) -> None:
        self._server.store.own(container_id, container)

    def own_unopened(self, container_id: int, first_use: Callable[[], None]) -> None:
        self._server.store.unopened[container_id] = first_use

    def release(self, container_id: int) -> Container | None:
        store = self._server.store
        if store.unopened.pop(container_id, None) is not None:
            return None
        container = store.release(container_id)
        self._server.service.answer_waiting()
        return container

    def load(self) -> LoadReport:
        """Returns the current load; its byte rate is the average since the last call."""
        counters, now_s = self._server.service.counters, time.monotonic()
        moved = counters.bytes_in + counters.bytes_out
        rate = (moved - self._bytes) / max(now_s - self._at_s, 1e-3)
        self._bytes, self._at_s = moved, now_s
        return LoadReport(
            containers=len(self._server.store.containers) + len(self._server.store.unopened),
            bytes_per_s=rate,
            connections=counters.connections_open,
        )
