"""Appends of a trace, taken in other batches than those that it has.

A client that batches by time puts on a slow machine more events into one append, or fewer, than when it was recorded.
What it writes is the same: the appends of one writer to one segment hold the same bytes one behind another, and their
event numbers go on in the same way. So an append that is not in the trace as it is may still be the next bytes of some
that are.

Pure. Invariants: each byte of an append of the trace is taken once, in order; only appends that the trace acknowledges
are taken in this way, since a refusal, or the end of a connection, is of that one append; conditional ones never.
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
    """What an append of a client is made of. finished: appends of the trace that it completes; last: in which it ends.

    left: bytes of the last that are still to come.
    """

    finished: tuple[Step, ...]
    last: Step
    left: int


class _Run:
    """The appends of one writer to one segment that are still to be asked; how far the first of them was."""

    __slots__ = ("done_bytes", "done_number", "steps")

    def __init__(self) -> None:
        self.steps: deque[Step] = deque()
        self.done_bytes = 0
        self.done_number: int | None = None


class Batches:
    """The appends of a trace, by writer and segment."""

    def __init__(self, steps: Iterable[Step]) -> None:
        self._runs: dict[tuple[bytes, str], _Run] = {}
        for step in steps:
            item = step.item
            if isinstance(item, Append) and item.expected_offset is None:
                self._runs.setdefault((item.writer_id.bytes, item.segment), _Run()).steps.append(step)

    def used(self, step: Step) -> None:
        """An append was asked for as it is in the trace."""
        item = step.item
        run = self._runs.get((item.writer_id.bytes, item.segment)) if isinstance(item, Append) else None
        if run is not None and step in run.steps:
            if step is run.steps[0]:
                run.done_bytes, run.done_number = 0, None
            run.steps.remove(step)

    def take(self, item: Append, writer_id: UUID, segment: str) -> Batch | None:
        """Takes an append that has the next bytes of some of the trace; None if it has not.

        writer_id, segment: as the trace has them.
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
    """What of a run has these bytes, with the event numbers behind `number` up to `last_number`."""
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
    """Whether all that the trace says to it are acknowledgements; some have none, for a later one stands for them."""
    try:
        return not step.closes and all(isinstance(decode(each.frame), DataAppended) for each in step.replies)
    except WireError:
        return False


def as_acknowledged(batch: Batch, item: Append, translate: Callable[[bytes], bytes]) -> list[tuple[bytes, int]]:
    """The acknowledgements of an append in another batch: frames, each with its delay (ns).

    translate: makes of a reply of the trace one with the client's ids.
    """
    found = []
    for each in batch.last.replies:
        said = decode(translate(each.frame))
        assert isinstance(said, DataAppended)
        offset = said.current_segment_write_offset
        ack = msgspec.structs.replace(
            said,
            event_number=item.event_number,
            previous_event_number=item.event_number - item.event_count,
            current_segment_write_offset=offset - batch.left if offset >= batch.left else offset,
        )
        found.append((encode(ack), each.delay_ns))
    return found
