"""Matches appends of a client that are batched differently from those of a trace.

A client that batches by time puts more or fewer events into one append than in the recording. The byte stream is the
same: the appends of one writer to one segment hold the same bytes in sequence, with the same event numbers. So an
append that the trace lacks may still be the next bytes of some that it has.

Where the trace has cut a connection, the run of a writer has the appends that were stored, as the next set-up tells; an
append that was not stored comes again behind it, and only tells where to cut. A client that connects again at another
moment continues behind the events that it was told are stored, or that were taken.

Pure. Invariants: each byte of an append of the trace is taken once, in order; only appends that the trace acknowledges
or that were stored are taken in this way, since a refusal applies to one append; conditional appends never are.
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
    """The appends of the trace that make up one append of a client.

    finished: those that it completes. last: the one in which it ends. left: bytes of `last` that remain.
    """

    finished: tuple[Step, ...]
    last: Step
    left: int


class _Run:
    """The remaining appends of one writer to one segment, and the progress in the first of them.

    lost: those that a cut connection kept from being stored. undecided: those that were cut, up to the next set-up.
    number: of the last event that a client knows or has made. offset: the end of that event in the segment.
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
        """Sorts the appends that were cut by the number of the last stored event."""
        for step in self.undecided:
            (self.steps if _append(step).event_number <= known else self.lost).append(step)
        self.undecided.clear()

    def made(self, step: Step, number: int, left: int) -> None:
        """Records the last event that a client has made, which ends `left` bytes before the end of an append."""
        self.number = max(number, self.number if self.number is not None else number)
        ack = next((each for each in _replies(step) if isinstance(each, DataAppended)), None)
        end = ack.current_segment_write_offset if ack is not None else self.offset + len(_append(step).data)
        self.offset = end - left


class Batches:
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
        """The number of the last stored event that answers a set-up now; None if the trace has refused it.

        It is that of the trace, unless a client has yet to make some of these events.
        """
        recorded = self._set_up.get(step)
        if recorded is None or not isinstance(step.item, SetupAppend):
            return None
        run = self._run(step.item)
        if run.number is None or not run.steps or _append(run.steps[0]).event_number > recorded:
            run.number = recorded if run.number is None else max(run.number, recorded)
        return run.number

    def lost(self, item: Append, writer_id: UUID, segment: str) -> list[Step]:
        """The appends of the trace with some of these events that were not stored, and whose cut is still to come."""
        run = self._runs.get((writer_id.bytes, segment))
        return [
            each
            for each in (() if run is None else run.lost)
            if each.is_cut_next
            and _append(each).event_number > item.event_number - item.event_count
            and _append(each).event_number - _append(each).event_count < item.event_number
        ]

    def has(self, step: Step) -> bool:
        """Whether an append of the trace is still to be made."""
        run = self._runs.get((step.item.writer_id.bytes, step.item.segment)) if isinstance(step.item, Append) else None
        return run is not None and step in run.steps

    def acknowledgement(self, item: Append, step: Step) -> bytes:
        """The acknowledgement of events that the trace has stored, but whose own one was lost. step: the last of it."""
        offset = self._run(_append(step)).offset
        return encode(
            DataAppended(
                item.request_id, item.writer_id, item.event_number, item.event_number - item.event_count, offset
            )
        )

    def used(self, step: Step) -> None:
        """Removes an append that a client made exactly as in the trace."""
        item = step.item
        run = self._runs.get((item.writer_id.bytes, item.segment)) if isinstance(item, Append) else None
        if run is not None and step in run.steps:
            run.made(step, _append(step).event_number, 0)
            if step is run.steps[0]:
                run.done_bytes, run.done_number = 0, None
            run.steps.remove(step)

    def take(self, item: Append, writer_id: UUID, segment: str) -> Batch | None:
        """Takes an append that holds the next bytes of the trace's appends; None if it does not.

        writer_id, segment: those of the trace.
        """
        run = self._runs.get((writer_id.bytes, segment))
        if run is None or item.expected_offset is not None:
            return None
        found = _fitted(run, bytes(item.data), item.event_number - item.event_count, item.event_number)
        if found is None:
            return None
        for each in found.finished:
            run.made(each, _append(each).event_number, 0)
            run.steps.popleft()
        if found.left:
            run.made(found.last, item.event_number, found.left)
        if found.left:
            run.done_bytes = len(_append(found.last).data) - found.left
            run.done_number = item.event_number
        else:
            run.done_bytes, run.done_number = 0, None
        return found


def _append(step: Step) -> Append:
    assert isinstance(step.item, Append)
    return step.item


def _fitted(run: _Run, data: bytes, number: int, last_number: int) -> Batch | None:
    """The part of a run that has these bytes, with the event numbers after `number` up to `last_number`."""
    at, skip, done = 0, run.done_bytes, run.done_number
    finished: list[Step] = []
    for step in run.steps:
        item = _append(step)
        if (done if done is not None else item.event_number - item.event_count) != number:
            return None
        if not _is_acknowledged(step):
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
    """The replies of the trace; None for one that does not decode."""
    for each in step.replies:
        try:
            yield decode(each.frame)
        except WireError:
            yield None


def _is_acknowledged(step: Step) -> bool:
    """Whether all its replies are acknowledgements. It may have none, as a later one, or a set-up, acknowledges it."""
    return all(isinstance(each, DataAppended) for each in _replies(step))


def as_acknowledged(batch: Batch, item: Append, translate: Callable[[bytes], bytes]) -> list[tuple[bytes, int]]:
    """The acknowledgements of a differently batched append: frames, each with its delay (ns).

    translate: returns a reply of the trace with the client's ids.
    """
    found = []
    for each in batch.last.replies:
        recorded = decode(translate(each.frame))
        assert isinstance(recorded, DataAppended)
        offset = recorded.current_segment_write_offset
        ack = msgspec.structs.replace(
            recorded,
            event_number=item.event_number,
            previous_event_number=item.event_number - item.event_count,
            current_segment_write_offset=offset - batch.left if offset >= batch.left else offset,
        )
        found.append((encode(ack), each.delay_ns))
    return found
