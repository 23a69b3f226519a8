"""Matches a client's appends with the appends of a trace when the two are batched differently.

A client that batches by time puts more or fewer events into one append than in the recording. The byte stream is the
same: the appends of one writer to one segment have the same bytes in sequence and the same event numbers. So the bytes
of an append that the trace lacks may continue where the last matched append of its writer ended.

When the trace cuts a connection, the writer's next set-up shows which cut appends were stored. Stored appends belong to
the writer's run. Lost appends do not, because the client sent them again later; they only mark where to cut. A client
that reconnects at another moment continues after the last event that a set-up reported as stored, or that it has sent
since.

Pure. Invariants: each byte of an append of the trace is matched once, in order. Only appends that the trace
acknowledges or that were stored match in another batch, because a refusal applies to one append. Conditional appends
never do.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import UUID

import msgspec

from segstore.wire import AppendSetup, Command, DataAppended, SetupAppend, WireError, decode, encode
from segstore.wire.blocks import Append

if TYPE_CHECKING:
    from segstore.server.replay.script import Step

_NEVER: Final = -(2**63) - 1


class Batch(NamedTuple):
    """The appends of the trace that one append of a client covers.

    finished: appends that it completes. last: the append in which it ends. left: remaining bytes of `last`.
    """

    finished: tuple[Step, ...]
    last: Step
    left: int


class _Run:
    """The remaining appends of one writer to one segment, and the progress in the first append.

    steps: the remaining appends. lost: appends that were not stored because the connection was cut. undecided: cut
    appends, until the next set-up says whether they were stored. done_bytes, done_number: number of matched bytes of
    the first append, and of the last event in them, or None. number: the last event that the client sent, or that a
    set-up reported to it. offset: the end of that event in the segment.
    """

    def __init__(self) -> None:
        self.steps: deque[Step] = deque()
        self.lost: list[Step] = []
        self.undecided: list[Step] = []
        self.done_bytes = 0
        self.done_number: int | None = None
        self.number: int | None = None
        self.offset = 0

    def settle(self, known: int) -> None:
        """Sorts the undecided appends into stored and lost appends. known: number of the last stored event."""
        for step in self.undecided:
            (self.steps if _append(step).event_number <= known else self.lost).append(step)
        self.undecided.clear()

    def made(self, step: Step, number: int, left: int) -> None:
        """Records the last event that the client has sent; it ends `left` bytes before the end of the append."""
        self.number = max(number, self.number if self.number is not None else number)
        ack = next((reply for reply in _replies(step) if isinstance(reply, DataAppended)), None)
        end = ack.current_segment_write_offset if ack is not None else self.offset + len(_append(step).data)
        self.offset = end - left


class Batches:
    """The runs of all writers of a trace, from which a client's appends are taken. steps: the steps of the trace."""

    def __init__(self, steps: Iterable[Step]) -> None:
        self._runs: dict[tuple[bytes, str], _Run] = {}
        self._set_up: dict[Step, int] = {}
        for step in steps:
            item = step.item
            if isinstance(item, SetupAppend):
                for reply in _replies(step):
                    if isinstance(reply, AppendSetup):
                        self._set_up[step] = reply.last_event_number
                        self._run(item).settle(reply.last_event_number)
            elif isinstance(item, Append) and item.expected_offset is None:
                run = self._run(item)
                (run.undecided if step.is_lost else run.steps).append(step)
        for run in self._runs.values():
            run.settle(_NEVER)

    def _run(self, item: SetupAppend | Append) -> _Run:
        return self._runs.setdefault((item.writer_id.bytes, item.segment), _Run())

    def known(self, step: Step) -> int | None:
        """Returns the last event number for the answer to a set-up now; None if the trace refuses the set-up.

        It is the number in the trace, unless the client has not sent all events up to it yet.
        """
        recorded = self._set_up.get(step)
        if recorded is None or not isinstance(step.item, SetupAppend):
            return None
        run = self._run(step.item)
        if run.number is None or not run.steps or _append(run.steps[0]).event_number > recorded:
            run.number = recorded if run.number is None else max(run.number, recorded)
        return run.number

    def lost(self, item: Append, writer_id: UUID, segment: str) -> list[Step]:
        """Returns the lost appends that share events with `item` and whose cut is still pending."""
        run = self._runs.get((writer_id.bytes, segment))
        return [
            step
            for step in (() if run is None else run.lost)
            if step.is_cut_next
            and _append(step).event_number > item.event_number - item.event_count
            and _append(step).event_number - _append(step).event_count < item.event_number
        ]

    def has(self, step: Step) -> bool:
        """Whether an append of the trace has not been matched yet."""
        run = self._runs.get((step.item.writer_id.bytes, step.item.segment)) if isinstance(step.item, Append) else None
        return run is not None and step in run.steps

    def acknowledgement(self, item: Append, step: Step) -> bytes:
        """Returns the acknowledgement of an append that was stored, but whose own acknowledgement was lost.

        step: the last append of the trace that it covers.
        """
        offset = self._run(_append(step)).offset
        return encode(
            DataAppended(
                item.request_id, item.writer_id, item.event_number, item.event_number - item.event_count, offset
            )
        )

    def used(self, step: Step) -> None:
        """Removes an append that the client has sent exactly as in the trace."""
        item = step.item
        run = self._runs.get((item.writer_id.bytes, item.segment)) if isinstance(item, Append) else None
        if run is not None and step in run.steps:
            run.made(step, _append(step).event_number, 0)
            if step is run.steps[0]:
                run.done_bytes, run.done_number = 0, None
            run.steps.remove(step)

    def take(self, item: Append, writer_id: UUID, segment: str) -> Batch | None:
        """Matches an append with the next bytes of its writer's run and removes them; None if they differ.

        writer_id, segment: as in the trace.
        """
        run = self._runs.get((writer_id.bytes, segment))
        if run is None or item.expected_offset is not None:
            return None
        batch = _fitted(run, bytes(item.data), item.event_number - item.event_count, item.event_number)
        if batch is None:
            return None
        for step in batch.finished:
            run.made(step, _append(step).event_number, 0)
            run.steps.popleft()
        if batch.left:
            run.made(batch.last, item.event_number, batch.left)
            run.done_bytes = len(_append(batch.last).data) - batch.left
            run.done_number = item.event_number
        else:
            run.done_bytes, run.done_number = 0, None
        return batch


def _append(step: Step) -> Append:
    assert isinstance(step.item, Append)
    return step.item


def _fitted(run: _Run, data: bytes, number: int, last_number: int) -> Batch | None:
    """Returns the start of a run with these bytes and the events `number + 1` to `last_number`; None if it differs."""
    at, skip, done = 0, run.done_bytes, run.done_number
    finished: list[Step] = []
    for step in run.steps:
        item = _append(step)
        start = item.event_number - item.event_count if done is None else done
        if start != number or not _is_acknowledged(step):
            return None
        piece = bytes(item.data[skip:])
        skip, done = 0, None
        left = len(piece) - (len(data) - at)
        if left > 0:
            fits = piece.startswith(data[at:]) and number < last_number < item.event_number
            return Batch(tuple(finished), step, left) if fits else None
        if not data.startswith(piece, at):
            return None
        at, number = at + len(piece), item.event_number
        finished.append(step)
        if number >= last_number:
            return Batch(tuple(finished), step, 0) if at == len(data) and number == last_number else None
    return None


def _replies(step: Step) -> Iterator[Command | None]:
    """Yields the replies to a step; None for a reply that does not decode."""
    for reply in step.replies:
        try:
            yield decode(reply.frame)
        except WireError:
            yield None


def _is_acknowledged(step: Step) -> bool:
    """Whether no reply is a refusal. An append may have no reply: a later acknowledgement or set-up covers it."""
    return all(isinstance(reply, DataAppended) for reply in _replies(step))


def as_acknowledged(batch: Batch, item: Append, translate: Callable[[bytes], bytes]) -> list[tuple[bytes, int]]:
    """Returns the acknowledgements of a differently batched append as frames with their delays (ns).

    translate: replaces the ids of the trace in a reply by the client's ids.
    """
    acks = []
    for reply in batch.last.replies:
        recorded = decode(translate(reply.frame))
        assert isinstance(recorded, DataAppended)
        offset = recorded.current_segment_write_offset
        ack = msgspec.structs.replace(
            recorded,
            event_number=item.event_number,
            previous_event_number=item.event_number - item.event_count,
            current_segment_write_offset=offset - batch.left if offset >= batch.left else offset,
        )
        acks.append((encode(ack), reply.delay_ns))
    return acks
