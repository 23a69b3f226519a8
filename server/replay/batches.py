"""Matches appends of a client that are batched differently from those of a trace.

A client that batches by time puts more or fewer events into one append than in the recording. The byte stream is the
same: the appends of one writer to one segment hold the same bytes in sequence, with the same event numbers. So an
append that the trace lacks may still be the next bytes of some that it has.

Pure. Invariants: each byte of an append of the trace is taken once, in order; only appends that the trace acknowledges
are taken in this way, since a refusal or a closed connection applies to one append; conditional appends never are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

import msgspec

from segstore.wire import DataAppended, WireError, decode, encode
from segstore.wire.blocks import Append

if TYPE_CHECKING:
    from segstore.server.replay.script import Step


class Batch(NamedTuple):
    """The appends of the trace that make up one append of a client.

    finished: those that it completes. last: the one in which it ends. left: bytes of `last` that remain.
    """

    finished: tuple[Step, ...]
    last: Step
    left: int


class _Run:
    """The remaining appends of one writer to one segment, and the progress in the first of them."""

    def __init__(self) -> None:
        self.steps: deque[Step] = deque()
        self.done_bytes = 0
        self.done_number: int | None = None


class Batches:
    def __init__(self, steps: Iterable[Step]) -> None:
        self._runs: dict[tuple[bytes, str], _Run] = {}
        for step in steps:
            item = step.item
            if isinstance(item, Append) and item.expected_offset is None:
                self._runs.setdefault((item.writer_id.bytes, item.segment), _Run()).steps.append(step)

    def used(self, step: Step) -> None:
        """Removes an append that a client made exactly as in the trace."""
        item = step.item
        run = self._runs.get((item.writer_id.bytes, item.segment)) if isinstance(item, Append) else None
        if run is not None and step in run.steps:
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
        for _ in found.finished:
            run.steps.popleft()
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


def _is_acknowledged(step: Step) -> bool:
    """Whether all its replies are acknowledgements. It may have none, as a later one acknowledges it too."""
    try:
        return not step.closes and all(isinstance(decode(each.frame), DataAppended) for each in step.replies)
    except WireError:
        return False


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
