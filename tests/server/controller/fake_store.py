"""A segment store as the controller sees one: names, lengths, seals; every call is noted, and can be made to fail."""

import asyncio
from collections.abc import Sequence

from segstore.server.controller import ScalingPolicy, SegmentAdmin, SegmentStoreFailed
from segstore.server.controller.segment_admin import Load
from segstore.wire import Command
from segstore.wire.endpoint import Endpoint


class FakeStore(SegmentAdmin):
    """A `SegmentAdmin` that asks nobody."""

    def __init__(self) -> None:
        self.lengths: dict[str, int] = {}
        self.starts: dict[str, int] = {}
        self.sealed: set[str] = set()
        self.policies: dict[str, ScalingPolicy] = {}
        self.tables: dict[str, int] = {}
        self.events: dict[str, int] = {}
        self.appended: dict[str, dict[int, bytes]] = {}
        self.calls: list[tuple[str, ...]] = []
        self.broken: set[str] = set()

    def _called(self, what: str, *names: str) -> None:
        self.calls.append((what, *names))
        if what in self.broken:
            raise SegmentStoreFailed(names[0], what)

    async def ask(self, segment: str, did: str, request: Command) -> Command:
        raise AssertionError(f"{request} is asked of no store")

    def owner_of(self, segment: str) -> Endpoint:
        return Endpoint("store.example", 12345)

    async def create_segment(self, segment: str, scaling: ScalingPolicy, rollover_bytes: int) -> None:
        self._called("create", segment)
        await asyncio.sleep(0)
        self.lengths.setdefault(segment, 0)
        self.policies[segment] = scaling

    async def update_policy(self, segment: str, scaling: ScalingPolicy) -> None:
        self._called("policy", segment)
        self.policies[segment] = scaling

    async def seal_segment(self, segment: str) -> int:
        self._called("seal", segment)
        self.sealed.add(segment)
        return self.lengths[segment]

    async def segment_length(self, segment: str) -> int:
        self._called("length", segment)
        return self.lengths[segment]

    async def append_event(self, segment: str, number: int, event: bytes) -> None:
        self._called("append", segment)
        appended = self.appended.setdefault(segment, {})
        if not any(each >= number for each in appended):
            appended[number] = event
            self.lengths[segment] += len(event)

    async def truncate_segment(self, segment: str, offset: int) -> None:
        self._called("truncate", segment)
        self.starts[segment] = max(offset, self.starts.get(segment, 0))

    async def delete_segment(self, segment: str) -> None:
        self._called("delete", segment)
        self.lengths.pop(segment, None)
        self.sealed.discard(segment)

    async def merge_segments(self, target: str, sources: Sequence[str]) -> None:
        self._called("merge", target, *sources)
        assert target not in self.sealed
        for source in sources:
            self.lengths[target] += self.lengths.pop(source, 0)

    async def create_table(self, segment: str, key_bytes: int, rollover_bytes: int) -> None:
        self._called("create table", segment)
        self.tables.setdefault(segment, key_bytes)

    async def delete_table(self, segment: str) -> None:
        self._called("delete table", segment)
        self.tables.pop(segment, None)

    async def load(self, segment: str) -> Load | None:
        self._called("load", segment)
        return Load(self.events.get(segment, 0), self.lengths[segment]) if segment in self.lengths else None


class Clock:
    """A time that passes when told to."""

    def __init__(self, now_ms: int = 1_000_000) -> None:
        self.now_ms = now_ms

    def __call__(self) -> int:
        return self.now_ms
