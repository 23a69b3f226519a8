"""All containers of one store, and the requests that touch more than one segment.

Each segment belongs to the container that its name maps to; a request for a segment whose container is not owned here
raises `NotOwner`. This module also maintains index segments: each segment of a user's stream has an index, which is
created, truncated and deleted with it and may lie in another container.

Invariant: container numbers are 0 to `containers` - 1; only the `owned` containers answer.

Follows `PravegaRequestProcessor`, `AppendProcessor`, `IndexRequestProcessor` and `StreamSegmentService`.
Deliberate differences: segments merge across the containers of one store, where the reference finds no source; the
index of a merged segment is deleted after a while, if the process has not ended by then; the reference keeps it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import takewhile
from uuid import UUID

from segstore.server.store.attributes import AttributeUpdate
from segstore.server.store.chunks import ChunkPool
from segstore.server.store.container import MAX_ATTRIBUTES, Container, ReadResult
from segstore.server.store.errors import (
    IllegalArgument,
    NoSuchSegment,
    NotOwner,
    SegmentExists,
    SegmentTruncated,
    StoreError,
    Unmapped,
)
from segstore.server.store.index import locate, truncation_point
from segstore.server.store.operations import OperationJournal
from segstore.server.store.segment import Segment
from segstore.server.store.tables import TableSegment
from segstore.server.store.waiting import Waiters
from segstore.wire.names import container_of, index_name, is_index, is_user_stream_segment

IS_INDEX = "segmentName is already an index segment name"
"""The reference's message where it looks for the index of an index."""


class SegmentStore:
    """The state of one segment store.

    `owned`: the containers owned at the start; None for all. `journal`: returns a container's journal.

    Attributes:
        container_count: number of containers in the cluster.
        containers: the containers owned here, by number; for reading only.
        unopened: owned containers whose state is loaded on first use: number → function that loads it.
        pool: the chunks of all segments.
        waiters: readers that wait at a tail, in all containers.
        separate_journals: no operation can change two containers at once, so segments merge only within a container.
    """

    def __init__(
        self,
        containers: int = 1,
        owned: Iterable[int] | None = None,
        *,
        pool: ChunkPool | None = None,
        journal: Callable[[int], OperationJournal] | None = None,
        reuse_names: bool = False,
        strict_transient_attributes: bool = False,
        max_attributes: int = MAX_ATTRIBUTES,
    ) -> None:
        self.container_count = containers
        self.containers: dict[int, Container] = {}
        self.unopened: dict[int, Callable[[], None]] = {}
        self.pool = ChunkPool() if pool is None else pool
        self.waiters = Waiters()
        self.separate_journals = False
        self._journal = journal
        self._merged: dict[str, int] = {}  # index of a merged segment → time of the merge (ms), oldest first
        self._make = partial(
            Container,
            waiters=self.waiters,
            peer_of=self._peer,
            reuse_names=reuse_names,
            strict_transient_attributes=strict_transient_attributes,
            max_attributes=max_attributes,
        )
        for container_id in range(containers) if owned is None else owned:
            self.own(container_id)

    # Ownership

    def own(self, container_id: int, container: Container | None = None) -> Container:
        """Takes over a container: `container` as returned by `release` of any store, or an empty container."""
        if container_id in self.containers:
            raise ValueError(f"container {container_id} is owned already")
        if container is None:
            journal = None if self._journal is None else self._journal(container_id)
            container = self.new_container(container_id, self.pool, journal)
        else:
            container.move(self.waiters, self._peer)
            if (memory := container.pool.memory) is not self.pool.memory:
                memory.join(self.pool.memory)
        self.containers[container_id] = container
        return container

    def new_container(self, container_id: int, pool: ChunkPool, journal: OperationJournal | None) -> Container:
        """An empty container with the store's settings, which it does not own yet."""
        return self._make(container_id, pool=pool, journal=journal)

    def release(self, container_id: int) -> Container:
        """Releases a container and wakes its readers. The container keeps its state: `own` it again or `clear` it.
        `KeyError` if it is not owned.
        """
        container = self.containers.pop(container_id)
        container.dismiss_readers()
        container.pool.memory.leave()
        return container

    def container_for(self, name: str) -> Container:
        """The container of a segment, which need not exist. Raises `NotOwner`."""
        container_id = container_of(name, self.container_count)
        container = self.containers.get(container_id)
        if container is None:
            if (first_use := self.unopened.get(container_id)) is not None:
                first_use()
            raise NotOwner(name, container=container_id)
        return container

    def owns(self, name: str) -> bool:
        """Whether this store is the one to ask for a segment."""
        container_id = container_of(name, self.container_count)
        return container_id in self.containers or container_id in self.unopened

    # Creating and deleting

    def create_segment(
        self, name: str, *, scale_type: int = 0, target_rate: int = 0, rollover_size: int = 0, now_ms: int
    ) -> None:
        """A new stream segment, with its index segment if it is a user's.

        Raises `NotOwner`, `SegmentExists`, `Unmapped` (for ""). If the index exists already or lies in a
        container owned elsewhere, the segment is still created, and the error names the segment.
        """
        self.container_for(name).create_segment(
            name, scale_type=scale_type, target_rate=target_rate, rollover_size=rollover_size, now_ms=now_ms
        )
        if not is_user_stream_segment(name):
            return
        index = index_name(name)
        try:
            self.container_for(index).create_index_segment(index, now_ms=now_ms)
        except SegmentExists as error:
            raise SegmentExists(name) from error
        except NotOwner as error:
            raise NotOwner(name, container=error.container) from error

    def delete_segment(self, name: str) -> None:
        """Deletes a segment and its index.

        Raises `NotOwner`, `NoSuchSegment`; `IllegalArgument` for an index, which is deleted nevertheless.
        """
        self.container_for(name).delete_segment(name)
        if is_index(name):
            raise IllegalArgument(IS_INDEX, segment=name)
        self._delete_index(name)

    def drop_merged_indexes(self, now_ms: int, idle_ms: int) -> None:
        """Deletes the indexes of segments that were merged `idle_ms` ago or earlier."""
        due = takewhile(lambda index: self._merged[index] <= now_ms - idle_ms, self._merged)  # the oldest first
        for index in tuple(due):
            del self._merged[index]
            name = index.removesuffix("#index")
            home = self._peer(name)
            if home is None or name not in home.segments:
                self._delete_index(name)

    # Looking

    def segment(self, name: str) -> Segment:
        """Returns a segment, for reading. Raises `NotOwner`, `NoSuchSegment`."""
        return self.container_for(name).segment(name)

    def segment_info(self, name: str, *, now_ms: int | None = None) -> Segment:
        """As `segment`, with its newest entries if it is an index.

        An index is brought up to `now_ms` first, here and in `read` and `locate_offset`; without a time up to
        the last append.
        """
        if is_index(name):
            self._settle(name, now_ms)
        return self.segment(name)

    def read(
        self, name: str, offset: int, max_length: int, *, woken: bool = False, now_ms: int | None = None
    ) -> ReadResult | None:
        """As `Container.read`: None where the reader must `wait`. Raises `NotOwner` too."""
        if is_index(name):
            self._settle(name, now_ms)
        return self.container_for(name).read(name, offset, max_length, woken=woken)

    def locate_offset(self, name: str, target: int, *, now_ms: int | None = None) -> int:
        """The smallest indexed offset that is at least `target`, else the segment's length.

        Raises `Unmapped` for an index, `NotOwner`, `NoSuchSegment`, `IndexTruncated`.
        """
        if is_index(name):
            raise Unmapped(IS_INDEX, segment=name)
        index = index_name(name)
        self._settle(index, now_ms)
        segment = self.container_for(index).segments.get(index)
        located = None if segment is None else locate(name, segment, target)
        return self.segment_info(name).length if located is None else located

    # Changing

    def truncate_segment(self, name: str, offset: int, *, now_ms: int | None = None) -> None:
        """Truncates a segment, and its index at the last entry that is not above `offset`.

        Raises as `Container.truncate_segment`, and `NotOwner`; after the segment was truncated `IndexTruncated`,
        and `IllegalArgument` for an index.
        """
        self.container_for(name).truncate_segment(name, offset)
        if is_index(name):
            raise IllegalArgument(IS_INDEX, segment=name)
        if not is_user_stream_segment(name):
            return
        index = index_name(name)
        self._settle(index, now_ms)
        container = self.container_for(index)
        segment = container.segments.get(index)
        point = 0 if segment is None else truncation_point(name, segment, offset)
        if point:
            try:
                container.truncate_segment(index, point)
            except SegmentTruncated as error:
                raise SegmentTruncated(name, start_offset=error.start_offset, offset=offset) from error

    def setup_append(self, name: str, writer_id: UUID, *, now_ms: int) -> int:
        """Returns the number of the writer's last event, or -2^63 if it never wrote.

        Creates a missing index of a user's segment. Works on sealed segments, too.

        Raises `NotOwner`, `NoSuchSegment`, `AttributeLimit`; for the index, by its own name, `NotOwner` and
        `SegmentExists` (its name is used up).
        """
        last = self.container_for(name).setup_append(name, writer_id, now_ms=now_ms)
        if is_user_stream_segment(name):
            index = index_name(name)
            self._ensure_index(self.container_for(index), index, now_ms)
        return last

    def merge(self, target: str, source: str, updates: Iterable[AttributeUpdate] = (), *, now_ms: int) -> int:
        """Merges `source` into `target` and returns the target's new length.

        The source's index stays, as in the reference, until `drop_merged_indexes`.

        Raises as `Container.merge`, and `NotOwner` for either. The reply to any error names the source.
        """
        home = self.container_for(source)
        container = self.container_for(target)
        if self.separate_journals and home is not container:
            raise Unmapped(f"{source} lies in another container than {target}", segment=source)
        length = container.merge(target, source, updates, now_ms=now_ms, source_container=home)
        self._merged[index_name(source)] = now_ms
        if is_user_stream_segment(target):
            index = index_name(target)
            if (index_home := self._peer(index)) is not None and not index_home.is_retired(index):
                self._ensure_index(index_home, index, now_ms)
        return length

    def merge_batch(self, target: str, sources: Sequence[str], *, now_ms: int) -> list[int]:
        """Merges the sources in order; returns the target's length after each source.

        All sources are tried. A missing source counts as merged. Raises the first error: `NotOwner`,
        `NoSuchSegment` and `SegmentSealed` for the target, `Unmapped` for a truncated source; after all merges,
        `IllegalArgument` if the target is an index.
        """
        home = self.container_for(target)
        lengths: list[int] = []
        refused: StoreError | None = None
        for source in sources:
            try:
                lengths.append(self.merge(target, source, now_ms=now_ms))
            except NoSuchSegment as error:
                if error.segment == source and target in home.segments:
                    lengths.append(home.segments[target].length)
                else:
                    refused = refused or NoSuchSegment(target)
            except StoreError as error:
                refused = refused or error
        if refused is not None:
            raise refused
        if is_index(target) and sources:
            raise IllegalArgument(IS_INDEX, segment=target)
        return lengths

    # The index

    def settle_index(self, now_ms: int | None = None, most: int | None = None) -> int:
        """Writes the index entries that are due, of each container at most `most`; see `Container.settle_index`."""
        return sum(container.settle_index(now_ms=now_ms, most=most) for container in self.containers.values())

    def table(self, name: str) -> TableSegment:
        """The table in a segment, for reading. Raises `NotOwner`, `NoSuchSegment`, `Unmapped`."""
        return self.container_for(name).table(name)

    # Inside

    def _peer(self, name: str) -> Container | None:
        return self.containers.get(container_of(name, self.container_count))

    def _delete_index(self, name: str) -> None:
        index = index_name(name)
        container = self._peer(index)
        if container is not None and index in container.segments:
            container.delete_segment(index)

    def _settle(self, index: str, now_ms: int | None) -> None:
        segment = index.removesuffix("#index")
        container = self._peer(segment)
        if container is not None:
            container.settle_index(segment, now_ms)

    @staticmethod
    def _ensure_index(container: Container, index: str, now_ms: int) -> None:
        if (segment := container.segments.get(index)) is None:
            container.create_index_segment(index, now_ms=now_ms)
        else:
            segment.mapped = True
