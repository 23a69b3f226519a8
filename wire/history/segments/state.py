"""What is known of one segment: its writers, contents, length, seal, truncations and merges."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from struct import Struct
from typing import Final

from segstore.wire.blocks import EVENT_HEADER_BYTES
from segstore.wire.history.facts import Place
from segstore.wire.history.segments.contents import Contents, hashes_of
from segstore.wire.history.segments.raw import RawReads
from segstore.wire.history.segments.written import Written
from segstore.wire.names import is_transient

ANYWHERE: Final = 1 << 62
"""In place of an upper bound that is not known."""
MOST: Final = (1 << 63) - 1
"""The highest event number and the highest offset."""
_header: Final = Struct(">ii")


def is_before(earlier: Place, later: Place) -> bool:
    """Whether a place is certainly before another: of one file, since two files may have two clocks."""
    return earlier[0] == later[0] and (earlier[4] < later[4] or (earlier[4] == later[4] and earlier[1:3] < later[1:3]))


class SegmentState:
    """What is known of one segment.

    Attributes:
        length: the highest length that a store has named, or up to which was read; its place, and the store.
        is_raw: whether bytes were sent that are not whole events; of a transient segment this is no matter.
        raw_reads: the reads after the first such append.
        sealed: the place where the seal was known. final: the length of the sealed segment, -1 if unknown.
        truncations: confirmed offsets and their places. truncated_to: the highest offset that was requested.
        start: the highest start that was described.
        merged_at: the lengths of the target after the segment was merged, and the places of request and reply.
        lost_merges: number of its merges without a reply, or into another transaction's segment.
        steps: of a transaction: what, the places of request and reply, the writer.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_transient = is_transient(name)
        self.writers: dict[str, Written] = {}
        self.contents = Contents()
        self.length = -1
        self.length_place: Place | None = None
        self.length_store = ""
        self.is_raw = False
        self.raw_reads = RawReads()
        self.is_created = False
        self.sealed: Place | None = None
        self.final = -1
        self.final_place: Place | None = None
        self.deleted: Place | None = None
        self.truncations: list[tuple[int, Place]] = []
        self.truncated_to = -1
        self.start = 0
        self.start_place: Place | None = None
        self.described = array("q")
        self.merged_at: list[tuple[int, Place, Place]] = []
        self.lost_merges = 0
        self.steps: list[tuple[str, Place, Place, str]] = []
        self.large: list[int] | None = None
        """Hashes of the events that the chunks of a transient segment form."""
        self.large_size = 0
        self._chunks: list[bytes] = []
        self._chunk_bytes = 0
        self.stores: dict[str, int] = {}
        """The stores that acknowledged appends → their numbers."""
        self._known: dict[str, tuple[array[int], array[int]]] = {}
        """Of each file the times at which the known length grew, and the lengths, which begin with -1."""
        self._open_merge: tuple[int, list[SegmentState]] = (-1, [])

    def writer(self, name: str) -> Written:
        return self.writers.get(name) or self.writers.setdefault(name, Written(name))

    def store(self, name: str) -> int:
        """Returns the number of a store; 0 if it is not known."""
        return self.stores.setdefault(name, len(self.stores) + 1) if name else 0

    def grow(self, length: int, place: Place, store: str) -> None:
        """Takes a length that the segment had at a place."""
        known = self._known.get(place[0])
        if known is None:
            known = self._known[place[0]] = array("q"), array("q", [-1])
        if length > known[1][-1]:
            known[0].append(place[4])
            known[1].append(length)
        if length > self.length:
            self.length, self.length_place, self.length_store = length, place, store

    def low(self, place: Place) -> int:
        """Returns the highest length that the latest records of a place's file show; -1 without such a record."""
        known = self._known.get(place[0])
        return -1 if known is None else known[1][-1]

    def length_at(self, place: Place) -> int:
        """Returns the highest length that was known before a place; -1 if no length was known."""
        times, lengths = self._known.get(place[0], ((), (-1,)))
        return lengths[bisect_left(times, place[4])]

    @property
    def size(self) -> int:
        """Its size when it was merged: of all that was sent; -1 if it is not known whether all of it was stored."""
        if self.is_transient:
            return self.large_size
        writers = self.writers.values()
        if any(writer.unknown or (writer.lasts and writer.lasts[-1] > writer.stored) for writer in writers):
            return -1
        appends = ((writer, *append) for writer in writers for append in zip(writer.lasts, writer.sizes, strict=True))
        return sum(size for writer, last, size in appends if last not in writer.refused)

    @property
    def senders(self) -> list[Written]:
        """Its writers; of a transient segment, the events that its chunks form in place of the chunks."""
        writers = list(self.writers.values())
        if not self.is_transient:
            return writers
        if not self.large or not writers:
            return []
        whole, count = Written(self.name), len(self.large)
        whole.add(count, count, self.large, self.large_size, 0, writers[0].sent[0])
        whole.stored, whole.unknown = count, writers[0].unknown
        return [whole]

    @property
    def extent(self) -> tuple[int, int]:
        """Its begin and end in the target; 0 and `ANYWHERE` if not known: a repeated merge answers a later length."""
        size = self.size
        if self.lost_merges or len(self.merged_at) != 1 or self.merged_at[0][0] < 0 or size < 0:
            return 0, ANYWHERE
        return max(self.merged_at[0][0] - size, 0), self.merged_at[0][0]

    @property
    def is_committed(self) -> bool:
        return bool(self.merged_at) or any(step[0] == "committed" for step in self.steps)

    @property
    def is_aborted(self) -> bool:
        whats = {step[0] for step in self.steps}
        if whats & {"aborting", "aborted"}:
            return True
        if self.is_transient or self.merged_at or self.lost_merges:
            return False
        return self.deleted is not None and not whats & {"committing", "committed"}

    @property
    def commit_asked(self) -> Place | None:
        """The place of the first request to commit or merge it."""
        asked = [step[1] for step in self.steps if step[0] in ("committing", "committed")]
        asked += [merge[1] for merge in self.merged_at]
        return min(asked, key=lambda place: place.time_ns, default=None)

    @property
    def places(self) -> tuple[Place, ...]:
        """The places that show its outcome."""
        steps = [step[2] for step in self.steps if step[0] in ("committed", "aborting", "aborted")]
        deleted = [] if self.deleted is None else [self.deleted]
        return (*steps, *(merge[2] for merge in self.merged_at), *deleted)[-1:]

    # --- large events -------------------------------------------------------------------------------------------------

    def take_chunk(self, data: bytes) -> None:
        """Takes a chunk of a large event, which was sent to this transient segment."""
        self._chunks.append(data)
        self._chunk_bytes += len(data)
        kind, length = _header.unpack_from(self._chunks[0]) if len(self._chunks[0]) >= EVENT_HEADER_BYTES else (1, 0)
        if kind == 0 and self._chunk_bytes == length + EVENT_HEADER_BYTES:
            self._form([self])

    def _form(self, sources: list[SegmentState]) -> bool:
        """Makes events of the chunks of sources that were merged in a row; returns whether it can."""
        data = b"".join(chunk for source in sources for chunk in source._chunks)
        hashes = hashes_of(data)
        if hashes is None:
            return False
        self.large, self.large_size = hashes, len(data)
        for source in sources:
            source._chunks = []
        return True

    def merge(self, source: SegmentState, length: int, asked: Place, place: Place) -> None:
        """Takes the merge of a source into this segment, which is so long afterwards; -1 if unknown."""
        source.merged_at.append((length, asked, place))
        if not source.is_transient or source.large is not None:
            return
        end, earlier = self._open_merge
        sources = [*earlier, source] if end == length - source._chunk_bytes else [source]
        self._open_merge = (-1, []) if source._form(sources) else (length, sources)
