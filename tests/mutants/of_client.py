"""Mutants of the client."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from itertools import count
from typing import Any
from uuid import UUID

from msgspec.structs import replace

from segstore.client.connection import outbox
from segstore.client.groups import GroupReader
from segstore.client.groups.state import Draft
from segstore.client.segment.conditional import ConditionalWriter
from segstore.client.segment.reader import SegmentReader
from segstore.client.segment.writer import SegmentWriter
from segstore.wire import AppendBlock, AppendBlockEnd, AppendSetup, Command, SegmentRead, SetupAppend, encode
from segstore.wire.blocks import EVENT_HEADER_BYTES
from segstore.wire.reader_groups import AcquireSegment, GroupState, UpdateDistance, state
from tests.mutants import scenarios
from tests.mutants.mutant import Patch, Planted
from tests.server.support import Peer

CLIENT = Planted()
mutant = CLIENT.mutant


@mutant("block-repeated", scenarios.writer, "lost acknowledgement")
def repeats_a_block_after_a_reconnect(patch: Patch) -> None:
    on_reply = SegmentWriter.on_reply

    def forgetting(self: SegmentWriter, reply: Any) -> None:
        if isinstance(reply, AppendSetup) and reply.last_event_number > 0:
            reply = replace(reply, last_event_number=reply.last_event_number - 1)
        on_reply(self, reply)

    patch(SegmentWriter, "on_reply", forgetting)


@mutant("block-repeated", scenarios.revisions, "lost answer of a conditional append")
def repeats_a_conditional_append(patch: Patch) -> None:
    set_up = ConditionalWriter._set_up

    async def forgetting(self: ConditionalWriter, *values: Any) -> int:
        await set_up(self, *values)
        return -1

    patch(ConditionalWriter, "_set_up", forgetting)


@mutant("held-twice", scenarios.group)
def takes_a_segment_of_another_reader(patch: Patch) -> None:
    acquire, applied = Draft.acquire, GroupState._acquire

    def more(self: Draft, reader: str, count: int) -> None:
        acquire(self, reader, count)
        if reader == "two":
            self.add(AcquireSegment(reader, "a/s/0.#epoch.0"))

    def tolerant(self: GroupState, update: AcquireSegment) -> None:
        if update.segment in self.unassigned:
            applied(self, update)

    patch(Draft, "acquire", more)
    patch(state, "_RULES", state._RULES | {AcquireSegment: tolerant})


# --- requests ---------------------------------------------------------------------------------------------------------


@mutant("request-id-reuse", scenarios.writer)
def asks_twice_with_one_request_id(patch: Patch) -> None:
    ask = SegmentReader._ask

    def twice(self: SegmentReader, offset: int) -> None:
        ask(self, offset)
        ask(self, offset)

    patch(SegmentReader, "_ask", twice)


@mutant("direction", scenarios.writer)
def sends_a_reply(patch: Patch) -> None:
    ask = SegmentReader._ask

    def replied(self: SegmentReader, offset: int) -> None:
        ask(self, offset)
        assert self._flow is not None
        self._flow.send(SegmentRead(self.segment, 0, False, False, b"", 0))

    patch(SegmentReader, "_ask", replied)


@mutant("frames-only", scenarios.fenced)
def sends_bytes_that_form_no_frame(patch: Patch) -> None:
    close = Peer.close

    async def closed(self: Peer) -> None:
        self.send_bytes(b"nonsense")
        await close(self)

    patch(Peer, "close", closed)


def sends(patch: Patch, change: Callable[[AppendBlock, AppendBlockEnd], Iterable[Command]]) -> None:
    """Sends what `change` makes of the block and the end of an append, of a writer's third event."""
    frames = outbox.frames_of_append

    def changed(writer: bytes, pieces: Any, size: int, events: int, last: int, request_id: int) -> Any:
        if last != 3:
            return frames(writer, pieces, size, events, last, request_id)
        block = AppendBlock(UUID(bytes=writer), b"".join(pieces))
        end = AppendBlockEnd(block.writer_id, size, b"", events, last, request_id)
        return [encode(command) for command in change(block, end)]

    patch(outbox, "frames_of_append", changed)


OTHER = UUID(int=9)


@mutant("writer-unknown", scenarios.writer)
def appends_without_a_set_up(patch: Patch) -> None:
    sends(patch, lambda block, end: (replace(block, writer_id=OTHER), replace(end, writer_id=OTHER)))


@mutant("writer-mismatch", scenarios.writer)
def ends_a_block_of_another_writer(patch: Patch) -> None:
    sends(patch, lambda block, end: (block, replace(end, writer_id=OTHER)))


@mutant("flow-reuse", scenarios.writer)
def sets_up_a_second_writer_on_its_flow(patch: Patch) -> None:
    sends(patch, lambda block, end: (block, end, SetupAppend(end.request_id, OTHER, "a/s/0.#epoch.0", "")))


@mutant("block-open", scenarios.writer)
def opens_a_second_block(patch: Patch) -> None:
    sends(patch, lambda block, end: (block, block, end))


@mutant("whole-size", scenarios.writer)
def counts_more_bytes_than_it_sends(patch: Patch) -> None:
    sends(patch, lambda block, end: (block, replace(end, size_of_whole_events=end.size_of_whole_events + 10)))


@mutant("no-events", scenarios.writer)
def appends_no_events(patch: Patch) -> None:
    sends(patch, lambda block, end: (block, replace(end, num_events=0)))


@mutant("block-tail", scenarios.writer)
def sends_bytes_behind_the_whole_events(patch: Patch) -> None:
    sends(patch, lambda block, end: (replace(block, data=bytes(block.data) + b"behind"), end))


@mutant("padded-data", scenarios.writer)
def sends_data_behind_padding(patch: Patch) -> None:
    padding = (-1).to_bytes(4, "big", signed=True) + bytes(4)
    sends(patch, lambda block, end: (replace(block, data=bytes(block.data) + padding), replace(end, data=b"behind")))


@mutant("number-backwards", scenarios.writer)
def counts_backwards(patch: Patch) -> None:
    sends(patch, lambda block, end: (block, replace(end, last_event_number=1)))


@mutant("number-reused", scenarios.writer, "lost append")
def reuses_an_event_number(patch: Patch) -> None:
    """Sends another event under the number of an append that it repeats."""
    frames, sent = outbox.frames_of_append, set[tuple[bytes, int]]()

    def reused(writer: bytes, pieces: Any, size: int, events: int, last: int, request_id: int) -> Any:
        if (writer, last) in sent:
            *before, event = pieces
            pieces = [*before, bytes(event)[:-1] + b"?"]
        sent.add((writer, last))
        return frames(writer, pieces, size, events, last, request_id)

    patch(outbox, "frames_of_append", reused)


@mutant("poll-skip", scenarios.hand_over)
def skips_events_at_a_hand_over(patch: Patch) -> None:
    """Skips two events: the first may have answered a read of the reader that released the segment."""
    follow, skipped = GroupReader._follow, len(b"secondthird") + 2 * EVENT_HEADER_BYTES

    def skips(self: GroupReader, segment: str, offset: int, idle_since_s: float) -> Coroutine[Any, Any, None]:
        return follow(self, segment, offset + skipped * (offset > 0), idle_since_s)

    patch(GroupReader, "_follow", skips)


@mutant("unread-below-checkpoint", scenarios.hand_over)
def takes_a_checkpoint_behind_skipped_events(patch: Patch) -> None:
    skips_events_at_a_hand_over(patch)


@mutant("read-twice", scenarios.hand_over)
def reads_a_segment_from_its_start(patch: Patch) -> None:
    mine = GroupReader._mine
    patch(GroupReader, "_mine", lambda self, state: dict.fromkeys(mine(self, state), 0))


@mutant("nonmonotonic-poll", scenarios.hand_over)
def reports_an_old_position(patch: Patch) -> None:
    numbers = count()

    def report(self: Draft, reader: str, distance: int) -> None:
        positions = self.segments_of(reader) if distance == 0 or next(numbers) == 0 else {"a/s/0.#epoch.0": 0}
        if self.updates:
            self.add(UpdateDistance(reader, distance, dict(positions)))

    patch(Draft, "report", report)
