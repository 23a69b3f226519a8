"""Maps each request of a client to its replies in a trace.

A request matches a request of the trace if their fields are equal. Request ids and delegation tokens, which differ from
run to run, are not compared; writer ids and names of transient segments are translated first. In the mode "match" the
batching of events does not matter either (`segstore.server.replay.batches`). Replies are translated back.

In this mode a client may reconnect at other times than in the trace: a set-up of a known writer is answered with its
last event in the trace up to that point, and a recorded cut happens once, at the first request that was lost in it.

Pure: frames in, replies out. Invariants: a request of the trace is used once, except Hello, KeepAlive and SetupAppend
in the mode "match"; client's writers and traced writers are paired one to one; replies without anything to translate
keep their bytes. If the trace has no Hello, for instance because it was trimmed by hand, a Hello is answered as a
current store does.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from functools import partial
from itertools import islice
from typing import Any, Final, Literal, NamedTuple
from uuid import UUID

import msgspec

from segstore.server.replay.batches import Batches, as_acknowledged
from segstore.server.replay.problem import NearMiss, described, near_misses
from segstore.server.replay.script import ScriptedReply, Step, first_unused, key_of, read_script, type_of
from segstore.wire import Command, WireError, decode, encode
from segstore.wire import commands as c
from segstore.wire.blocks import Append
from segstore.wire.protocol import HELLO
from segstore.wire.trace import Pairing, Record

Mode = Literal["strict", "match"]

_REPEATABLE: Final = (c.Hello, c.KeepAlive, c.SetupAppend)
_NAMES: Final = frozenset({"segment", "parent_segment", "target", "source", "sources", "source_segment_ids"})


class TraceAnswer(NamedTuple):
    """The answer to a request. replies: frames, each with its delay (ns) in the trace."""

    step: Step
    replies: tuple[ScriptedReply, ...]
    closes: bool


class Ids:
    """Translation between a trace and the client, both ways: writers and names of transient segments."""

    def __init__(self) -> None:
        self._writers: Pairing[bytes] = Pairing()  # by their bytes, whose hash is seeded
        self._segments: Pairing[str] = Pairing()
        self.names = self._segments.left

    def fits(self, traced: UUID | None, live: UUID | None) -> bool:
        """Whether a traced writer and a client's writer are paired with each other, or both unpaired."""
        if traced is None or live is None:
            return traced is live
        return self._writers.fits(traced.bytes, live.bytes)

    def traced(self, live: UUID) -> UUID:
        """Returns the traced writer paired with the client's writer `live`, or `live`."""
        return UUID(bytes=self._writers.left.get(live.bytes, live.bytes))

    def pair(self, traced: UUID | None, live: UUID | None) -> None:
        """Pairs a traced writer with a client's writer."""
        if traced is not None and live is not None:
            self._writers.pair(traced.bytes, live.bytes)

    def translate(self, frame: bytes, request: Any, live: Any, known: int | None = None) -> bytes:
        """Translates a reply of the trace for the client. request: the traced request; live: the client's request.
        known: the number of the last stored event, for the answer to a set-up.

        A reply that does not decode is returned unchanged.
        """
        try:
            command = decode(frame)
        except WireError:
            return frame
        changes: dict[str, Any] = {}
        for name in command.__struct_fields__:
            value = getattr(command, name)
            if name == "request_id" and value == getattr(request, "request_id", None):
                changes[name] = live.request_id
            elif name == "writer_id":
                changes[name] = self._live(value)
            elif name in _NAMES and isinstance(value, str):
                changes[name] = self._name(value, request, command)
        if isinstance(command, c.AppendSetup) and known is not None:
            changes["last_event_number"] = known
        changes = {name: value for name, value in changes.items() if getattr(command, name) != value}
        return encode(msgspec.structs.replace(command, **changes)) if changes else frame

    def _live(self, traced: UUID) -> UUID:
        return UUID(bytes=self._writers.right.get(traced.bytes, traced.bytes))

    def _name(self, traced: str, request: Any, reply: Command) -> str:
        known = self._segments.right.get(traced)
        if known is not None:
            return known
        if isinstance(request, c.CreateTransientSegment) and isinstance(reply, c.SegmentCreated):
            writer = self._live(request.writer_id)
            live = traced.replace(request.writer_id.hex, writer.hex).replace(str(request.writer_id), str(writer))
            self._segments.pair(traced, live)
            return live
        return traced


class Replay:
    """A replay of a trace: its used requests and its paired ids.

    mode: "strict": the client's connections correspond to the traced connections, in the order of their first requests,
    and the requests come in the order of the trace. "match": a request may be anywhere in the trace.
    left_out: client records without a request, see `read_script`.
    """

    def __init__(self, records: Iterable[Record], mode: Mode = "strict") -> None:
        self.mode = mode
        self.left_out: list[str] = []
        self.steps = read_script(records, self.left_out)
        self.ids = Ids()
        self._batches = Batches(self.steps)
        self._with_hello = {step.connection for step in self.steps if isinstance(step.item, c.Hello)}
        self._connections: deque[deque[Step]] = deque()
        self._by_key: dict[Any, list[Step]] = {}  # unused steps, and repeatable ones
        self._by_type: dict[str, list[Step]] = {}
        order: dict[int, deque[Step]] = {}
        for step in self.steps:
            if step.connection not in order:
                self._connections.append(order.setdefault(step.connection, deque()))
            order[step.connection].append(step)
            self._by_key.setdefault(step.key, []).append(step)
            self._by_type.setdefault(step.type_name, []).append(step)

    def connection(self) -> deque[Step]:
        """The expected requests of the client's next connection, in order.

        Empty in the mode "match" and after all connections of the trace.
        """
        return self._connections.popleft() if self.mode == "strict" and self._connections else deque()

    def greeting(self, item: Command | Append, expected: deque[Step] | None) -> ScriptedReply | None:
        """Returns the answer to a Hello that the trace lacks; None for another request, or if the trace has a Hello.

        expected: as for `answer`; None until the client's connection is matched to a traced connection.
        """
        if not isinstance(item, c.Hello):
            return None
        lacking = not self._with_hello or (expected and expected[0].connection not in self._with_hello)
        return ScriptedReply(encode(HELLO), 0) if lacking else None

    def answer(self, item: Command | Append, expected: deque[Step]) -> TraceAnswer | None:
        """Returns the answer to a request; None if the request is unexpected, or not in the trace."""
        if self.mode == "match":
            return self._matched(item)
        step = next(iter(self._fitting(item, islice(expected, 1))), None)
        if step is None:
            return None
        expected.popleft()
        return TraceAnswer(step, self._replies(step, item), step.closes)

    def _fitting(self, item: Command | Append, steps: Iterable[Step]) -> list[Step]:
        """The steps that a request matches."""
        key, live = key_of(item, self.ids.names), getattr(item, "writer_id", None)
        return [
            step for step in steps if step.key == key and self.ids.fits(getattr(step.item, "writer_id", None), live)
        ]

    def _replies(self, step: Step, item: Command | Append, known: int | None = None) -> tuple[ScriptedReply, ...]:
        """Uses a step; returns its replies for the client."""
        step.used += 1
        self.ids.pair(getattr(step.item, "writer_id", None), getattr(item, "writer_id", None))
        translated = partial(self.ids.translate, request=step.item, live=item, known=known)
        return tuple(ScriptedReply(translated(reply.frame), reply.delay_ns) for reply in step.replies)

    def _matched(self, item: Command | Append) -> TraceAnswer | None:
        """Returns the answer in the mode "match", regardless of earlier requests."""
        if isinstance(item, Append):
            writer_id, segment = self.ids.traced(item.writer_id), self.ids.names.get(item.segment, item.segment)
            lost = self._batches.lost(item, writer_id, segment)
            if lost:
                return self._cut(lost)
        steps = self._fitting(item, self._by_key.get(key_of(item, self.ids.names), ()))
        step = first_unused(steps)
        if step is not None and step.used and isinstance(item, _REPEATABLE):
            # A repeated set-up is answered, or left to the batches; a repeated keep-alive may have had no reply either.
            unanswered = None if isinstance(item, c.SetupAppend) else step
            step = next((candidate for candidate in reversed(steps) if candidate.replies), unanswered)
        if step is None:
            return self._batched(item, writer_id, segment) if isinstance(item, Append) else None
        if not isinstance(item, _REPEATABLE):
            self._by_key[step.key].remove(step)
        self._batches.used(step)
        replies = self._replies(step, item, self._batches.known(step))
        if step.cut is None:
            return TraceAnswer(step, replies, step.closes and step.used == 1)
        if not step.cut.done and (step.closes or (step.is_lost and not isinstance(item, c.ReadSegment))):
            return self._cut([step], replies)
        if step.is_lost and isinstance(item, Append):
            return self._stored(item, step)
        return TraceAnswer(step, replies, False)

    def _batched(self, item: Append, writer_id: UUID, segment: str) -> TraceAnswer | None:
        """The answer to an append whose events are batched differently in the trace. writer_id, segment: its."""
        batch = self._batches.take(item, writer_id, segment)
        if batch is None:
            return None
        for finished in batch.finished:
            finished.used += 1
            self._by_key[finished.key].remove(finished)
        lost = [step for step in (*batch.finished, batch.last) if step.is_cut_next]
        if lost:
            return self._cut(lost)
        if batch.last.is_lost:
            return self._stored(item, batch.last)
        frames = as_acknowledged(batch, item, lambda frame: self.ids.translate(frame, batch.last.item, item))
        closes = any(step.closes and step.cut is None for step in batch.finished)
        return TraceAnswer(batch.last, tuple(ScriptedReply(*frame) for frame in frames), closes)

    def _stored(self, item: Append, step: Step) -> TraceAnswer:
        """Acknowledges events that the trace has stored, if their connection was cut before."""
        return TraceAnswer(step, (ScriptedReply(self._batches.acknowledgement(item, step), 0),), False)

    def _cut(self, steps: list[Step], replies: tuple[ScriptedReply, ...] = ()) -> TraceAnswer:
        """Closes a client's connection: replays the cuts in which these requests were lost."""
        for cut in {step.cut for step in steps}:
            assert cut is not None
            cut.done = True
            for lost in cut.lost:
                if not self._batches.has(lost):
                    lost.used = lost.used or 1
                    if not isinstance(lost.item, _REPEATABLE) and lost in self._by_key[lost.key]:
                        self._by_key[lost.key].remove(lost)
        return TraceAnswer(steps[0], replies, True)

    def near(self, item: Command | Append) -> tuple[NearMiss, ...]:
        """Returns the traced requests nearest to an unanswered request."""
        return near_misses(item, self._by_type.get(type_of(item), ()), self.ids)

    def unused(self) -> Counter[str]:
        """The requests of the trace that no client has made, counted by command."""
        return Counter(step.type_name for step in self.steps if not step.used)

    def missed(self, most: int) -> list[str]:
        """Returns a line for each of the first unused requests, with its place in the trace and its fields."""
        steps = islice((step for step in self.steps if not step.used), most)
        return [f"request {step.number} (connection {step.connection}): {described(step.item)}" for step in steps]
