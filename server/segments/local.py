"""The segments of the stores in this process, as the controller asks for them: of the owning store, by a call.

Invariant: whoever waits for what a change brings is answered before the call returns. Refused: a segment that none of
the stores owns; of several, asking again helps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from segstore.server.controller import CONTROLLER_WRITER, Endpoint, Load, NobodyOwns, ScalingPolicy, SegmentStoreFailed
from segstore.server.node import SegmentStoreServer
from segstore.server.store import NoSuchSegment, NotOwner, SegmentExists, SegmentSealed, SegmentStore, StoreError
from segstore.wire.names import container_of


class LocalSegments:
    """`SegmentAdmin` for stores in this process."""

    def __init__(self, servers: Sequence[SegmentStoreServer], public_host: str) -> None:
        self._servers = servers
        self._public_host = public_host
        # Of one store, what it does not own nobody will; of several, somebody soon.
        self._failed = SegmentStoreFailed if len(servers) == 1 else NobodyOwns

    def server_of(self, segment: str) -> SegmentStoreServer:
        """The store that owns the segment's container. Raises NotOwner."""
        container = container_of(segment, self._servers[0].settings.containers)
        for server in self._servers:
            if server.store.owns(segment):
                return server
        raise NotOwner(segment, container=container)

    def owner_of(self, segment: str) -> Endpoint:
        try:
            server = self.server_of(segment)
        except NotOwner as error:
            raise self._failed(segment, "be found for") from error
        assert server.address is not None
        return Endpoint(self._public_host, server.address[1])

    def _do(self, segment: str, did: str, what: Callable[[SegmentStore, int], Any], *fine: type[StoreError]) -> Any:
        """Carries out a change on the owning store; errors of the types in `fine` mean that it was done before."""
        try:
            server = self.server_of(segment)
            result = what(server.store, server.service.now_ms())
        except fine:
            return None
        except NotOwner as error:
            raise self._failed(segment, did) from error
        except StoreError as error:
            raise SegmentStoreFailed(segment, did) from error
        server.service.answer_waiting()
        return result

    async def create_segment(self, segment: str, scaling: ScalingPolicy, rollover_bytes: int) -> None:
        def create(store: SegmentStore, now_ms: int) -> None:
            store.create_segment(
                segment,
                scale_type=scaling.kind,
                target_rate=scaling.target_rate,
                rollover_size=rollover_bytes,
                now_ms=now_ms,
            )

        self._do(segment, "create", create, SegmentExists)

    async def update_policy(self, segment: str, scaling: ScalingPolicy) -> None:
        def update(store: SegmentStore, now_ms: int) -> None:
            store.update_policy(segment, scale_type=scaling.kind, target_rate=scaling.target_rate, now_ms=now_ms)

        self._do(segment, "update", update, SegmentSealed)

    async def seal_segment(self, segment: str) -> int:
        self._do(segment, "seal", lambda store, now_ms: store.seal_segment(segment, now_ms=now_ms), SegmentSealed)
        return await self.segment_length(segment)

    async def segment_length(self, segment: str) -> int:
        length: int = self._do(segment, "measure", lambda store, _: store.segment_info(segment).length)
        return length

    async def append_event(self, segment: str, number: int, event: bytes) -> None:
        def append(store: SegmentStore, now_ms: int) -> None:
            last = store.setup_append(segment, CONTROLLER_WRITER, now_ms=now_ms)
            if last < number:
                store.append(segment, CONTROLLER_WRITER, number, 1, event, last_event_number=last, now_ms=now_ms)

        self._do(segment, "append to", append)

    async def truncate_segment(self, segment: str, offset: int) -> None:
        def truncate(store: SegmentStore, now_ms: int) -> None:
            if offset > store.segment_info(segment).start_offset:
                store.truncate_segment(segment, offset, now_ms=now_ms)

        self._do(segment, "truncate", truncate)

    async def delete_segment(self, segment: str) -> None:
        self._do(segment, "delete", lambda store, _: store.delete_segment(segment), NoSuchSegment)

    async def merge_segments(self, target: str, sources: Sequence[str]) -> None:
        def merge(store: SegmentStore, now_ms: int) -> None:
            if store.segment(target).sealed:
                raise SegmentSealed(target)
            store.merge_batch(target, sources, now_ms=now_ms)

        self._do(target, "merge into", merge)

    async def create_table(self, segment: str, key_bytes: int, rollover_bytes: int) -> None:
        def create(store: SegmentStore, now_ms: int) -> None:
            store.create_table_segment(segment, key_length=key_bytes, rollover_size=rollover_bytes, now_ms=now_ms)

        self._do(segment, "create", create, SegmentExists)

    async def delete_table(self, segment: str) -> None:
        self._do(
            segment,
            "delete",
            lambda store, _: store.delete_table_segment(segment, must_be_empty=False),
            NoSuchSegment,
        )

    async def loads(self, segments: Sequence[str]) -> Mapping[str, Load]:
        loads: dict[str, Load] = {}
        for name in segments:
            try:
                segment = self.server_of(name).store.segment(name)
            except (NoSuchSegment, NotOwner):
                continue
            loads[name] = Load(segment.event_count or 0, segment.length)
        return loads
