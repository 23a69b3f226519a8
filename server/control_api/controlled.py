"""What the control API looks at and changes: the stores of a process, what is to go wrong there, the controller."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version

from segstore.server.control_api.writer_names import WriterNames
from segstore.server.controller.controller import Controller
from segstore.server.faults import Faults
from segstore.server.runner import SegmentStoreServer
from segstore.server.store.errors import StoreError
from segstore.server.writer_counts import WriterCounts

__all__ = ["Controlled"]


def _no_controller() -> Controller | None:
    return None


@dataclass(frozen=True)
class Controlled:
    """stores: of this process. faults: of all of them, None where nothing can go wrong on request. controller: gives
    the controller, if there is one now. names: of writers. version: of this project."""

    stores: Sequence[SegmentStoreServer]
    faults: Faults | None = None
    controller: Callable[[], Controller | None] = _no_controller
    names: WriterNames = field(default_factory=WriterNames)
    version: str = field(default_factory=lambda: version("segstore"))

    def count_writers(self) -> None:
        """From now on the stores count what writers append."""
        for each in self.stores:
            if each.service.writer_counts is None:
                each.service.writer_counts = WriterCounts(each.service.has_segment)

    def store_of(self, segment: str) -> SegmentStoreServer | None:
        """The store that owns the segment's container; None if none of these does, or the name cannot be one."""
        for each in self.stores:
            try:
                each.store.container_for(segment)
            except StoreError:
                continue
            return each
        return None
