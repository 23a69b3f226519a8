"""The rules of the protocol, checked frame by frame on one connection.

A reply answers the oldest request with its request id, or of its kind if it carries no id; each append may get a reply
of its own, even if an earlier acknowledgement covers it. An acknowledgement covers the appends of its writer up to its
number, since the writer's last set-up; a failure refuses all unacknowledged appends with its request id.

Invariants: nothing is raised, whatever the frames are. At most `MOST_WAITING` requests are held; when there are more,
they are dropped, and whether a later reply has a request stays open. Replies to requests before a recording began stay
open, too.

Source: `AppendRule` for append blocks, `segstore.wire.protocol` for pairs of requests and replies.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from itertools import chain, islice
from typing import Any, Final, NamedTuple
from uuid import UUID

from segstore.wire import commands as c
from segstore.wire.codec import HEADER_BYTES
from segstore.wire.errors import WireError
from segstore.wire.history.facts import Broken, Finding, Key, Open, Place, Waiting, segment_key
from segstore.wire.history.traces.group_facts import OF_GROUPS
from segstore.wire.protocol import ANSWERS, answer_key
from segstore.wire.request_id import flow_of
from segstore.wire.schema import COMMANDS, MAX_FRAME_BYTES, Command, Unknown
from segstore.wire.trace import Direction, Record

APPENDS: Final = frozenset({c.AppendBlockEnd, c.ConditionalAppend, c.ConditionalBlockEnd})
"""The commands that complete an append and get a reply."""
APPENDING: Final = APPENDS | {c.Padding, c.SetupAppend, c.AppendBlock}
"""The commands that must not occur between an append block and its end."""
MOST_WAITING: Final = 100_000
TOO_MANY: Final = "too many requests wait on the connection"
_new: Final = tuple.__new__
"""Makes a named tuple in half the time of a call of its class."""
_BOTH_WAYS: Final = frozenset({c.Hello, c.KeepAlive})
_TO_STORE: Final = (
    frozenset(kind for kind in COMMANDS.values() if kind.type_name in ANSWERS) | {c.AppendBlock}
) - _BOTH_WAYS
_TO_CLIENT: Final = frozenset(kind for kind in COMMANDS.values() if kind.is_reply) - _BOTH_WAYS
_ANSWERED: Final = frozenset(kind for kind in COMMANDS.values() if kind.type_name in ANSWERS)
_TO_APPENDS: Final = ANSWERS[c.AppendBlockEnd.type_name] | ANSWERS[c.ConditionalAppend.type_name]
_PADDING: Final = (-1).to_bytes(4, "big", signed=True)
PARTIAL: Final = (-2).to_bytes(4, "big", signed=True)


def is_beginning(data: bytes) -> bool:
    """Whether bytes may be the beginning of a frame that is cut off."""
    size = int.from_bytes(data[4:HEADER_BYTES], "big", signed=True)
    return len(data) < HEADER_BYTES or len(data) - HEADER_BYTES < size <= MAX_FRAME_BYTES


def every_key(_: Key) -> bool:
    return True


class _Tenure(NamedTuple):
    """A flow since a writer was set up on it."""

    writer: UUID
    place: Place


_Append = tuple[int, int, Waiting, _Tenure | None]
"""A pending append: its event number, request id, request, and the tenure of its flow; None if it was refused."""


class ConnectionWriter:
    """A writer on the connection.

    is_set_up: whether it was set up there. highest, acked: event numbers since then. appends: those that are pending;
    fresh: how many were sent since the set-up. name: its id as text. segment, key, has_group: see `name_segment`.
    is_judged: whether facts of its segment are wanted.
    """

    def __init__(self, writer_id: UUID) -> None:
        self.name, self.segment = str(writer_id), ""
        self.appends: deque[_Append] = deque()
        self.key: Key | None = None
        self.has_group = self.is_judged = False
        self.set_up(is_set_up=False)

    def set_up(self, *, is_set_up: bool = True) -> None:
        self.is_set_up = is_set_up
        self.highest: int | None = None
        self.acked: int | None = None
        self.fresh = 0

    def name_segment(self, segment: str, is_judged: Callable[[Key], bool]) -> None:
        """Takes the segment. key: of its facts; has_group: it may hold the state of a reader group."""
        self.segment, self.key, self.has_group = segment, segment_key(segment), OF_GROUPS in segment
        self.is_judged = is_judged(self.key)

    def unanswered(self) -> list[_Append]:
        """Returns the appends since the set-up that are neither acknowledged nor refused."""
        fresh = islice(self.appends, max(0, len(self.appends) - self.fresh), None)
        return [append for append in fresh if self.acked is None or append[0] > self.acked]


class ProtocolCheck(ABC):
    """Checks the frames of one connection, and matches replies to requests.

    is_whole: its opening was recorded. findings: gets broken rules. is_judged: whether facts of a key are wanted.
    """

    def __init__(self, key: Key, findings: list[Finding], is_judged: Callable[[Key], bool] = every_key) -> None:
        self.key = key
        self._findings = findings
        self._is_judged = is_judged
        self._start(is_whole=False)

    def _start(self, *, is_whole: bool) -> None:
        """Begins a connection."""
        self._is_whole = is_whole
        self._is_closed = False
        self._silent = set(Direction)
        """The directions without a frame so far."""
        self._block: tuple[Any, Place] | None = None
        """The append block that waits for its end."""
        self._waiting: dict[int | str, deque[Waiting]] = {}
        """Key of replies → pending requests, except appends."""
        self._ambiguous: set[int | str] = set()
        """Request ids of writers that were set up again while a reply was missing, and may still come."""
        self._replies: dict[int | str, int] = {}
        """Request id of appends → how many replies they may get."""
        self._count = 0
        """Number of pending requests."""
        self._dropped = False
        self._writers: dict[int, ConnectionWriter] = {}
        self._flows: dict[int, _Tenure] = {}
        self._lapsed: dict[int, _Append] = {}
        """Identity of a request → the append, if it was unanswered when its writer was set up again."""

    @abstractmethod
    def _sent(
        self, place: Place, writer: ConnectionWriter, command: Any, number: int, block: c.AppendBlock | None
    ) -> None:
        """Called for each append; number: of its last event. block: its append block, if there is one."""

    @abstractmethod
    def _unanswered(self, request: Waiting) -> None:
        """Called for each request, except appends, that will have no reply."""

    def _loose_bytes(self, place: Place, data: bytes) -> None:
        """Takes bytes that form no frame. A process that is killed may leave the beginning of a frame."""
        self._after_close(place, "bytes")
        if is_beginning(data):
            self._open("frames-only", "the connection or the recording ended in the middle of a frame")
        else:
            self._broken("frames-only", place, f"{len(data)} bytes form no frame")

    def _drop(self) -> None:
        """Drops the pending requests."""
        for request in chain.from_iterable(self._waiting.values()):
            self._unanswered(request)
        for writer in self._writers.values():
            writer.appends.clear()
        self._waiting, self._count = {}, 0
        self._lapsed.clear()

    def _undecodable(self, place: Place, record: Record, error: WireError) -> None:
        """Takes a frame that does not decode."""
        if len(record.data) < HEADER_BYTES:
            self._silent.discard(record.direction)
            self._after_close(place, "a frame")
        else:
            code = int.from_bytes(record.data[:4], "big", signed=True)
            self._frame(place, record.direction, COMMANDS.get(code, Unknown), code)
        self._broken("decodes", place, str(error))

    def _request(self, place: Place, command: Any) -> None:
        """Takes a frame from the client.

        Of the commands of `APPENDING`, a set-up starts a writer, a block and an append need a writer, and an append may
        end a block.
        """
        kind = type(command)
        if self._silent or self._is_closed or kind not in _TO_STORE:
            self._frame(place, Direction.REQUEST, kind, command.code)
        if kind in APPENDING:
            block, self._block = self._block, None
            if block is not None and kind is not c.AppendBlockEnd:
                text = f"{command.type_name} follows the append block of writer {block[0].writer_id}, which is open"
                self._broken("block-open", place, text, also=block[1])
            if kind is not c.SetupAppend and kind is not c.Padding:
                writer = self._writers.get(command.writer_id.int) or self._writer(command.writer_id)
                if self._is_whole and not writer.is_set_up:
                    self._broken("writer-unknown", place, f"writer {command.writer_id} appends without a set-up")
                if kind is c.AppendBlock:
                    self._block = command, place
                else:
                    self._append(place, command, writer, block)
                return
            if kind is c.SetupAppend:
                self._set_up(place, command)
        if kind in _ANSWERED:
            self._wait(place, command)

    def _reply(self, place: Place, command: Any) -> Sequence[Waiting]:
        """Takes a frame from the store; returns the requests that it answers, oldest first."""
        kind = type(command)
        if self._silent or self._is_closed or kind not in _TO_CLIENT:
            self._frame(place, Direction.REPLY, kind, command.code)
        if kind is c.DataAppended:
            return self._acknowledged(place, command)
        if not command.is_reply:
            return ()
        key = answer_key(command)
        if kind is c.ConditionalCheckFailed:
            answered = self._covered(self._writer(command.writer_id), command.event_number)
        else:
            answered = self._answered(key)
        if not answered and kind is c.AuthTokenCheckFailed:
            key, answered = self._refused_read(key)
        if answered and type(answered[-1].command) not in APPENDS:
            self._compare(place, command, answered[-1])
        else:
            self._reply_to_append(place, command, key, answered)
        if command.is_failure or kind is c.ConditionalCheckFailed:
            self._refuse(key)
        return answered

    def _broken(self, rule: str, place: Place, text: str, *values: int | None, also: Place | None = None) -> None:
        """Adds a verdict. values: the expected and the actual value, if there are. also: an earlier record."""
        places = (place,) if also is None else (also, place)
        self._findings.append(Broken(rule, self.key, places, text, *values))

    def _open(self, rule: str, why: str) -> None:
        self._findings.append(Open(rule, self.key, why))

    def _after_close(self, place: Place, what: str) -> None:
        if self._is_closed:
            self._broken("after-close", place, f"{what} on a closed connection")

    def _frame(self, place: Place, direction: Direction, kind: type[Command], code: int) -> None:
        """Checks what concerns frames of any kind."""
        self._after_close(place, kind.type_name)
        if direction in self._silent:
            self._silent.remove(direction)
            if self._is_whole and kind is not c.Hello:
                self._broken("hello-first", place, f"the first {direction.name.lower()} is {kind.type_name}")
        if kind is Unknown:
            self._broken("known-command", place, f"the type code {code} is unknown", None, code)
        elif kind in (_TO_STORE if direction is Direction.REPLY else _TO_CLIENT):
            self._broken("direction", place, f"{kind.type_name} goes the wrong way")

    # --- requests -----------------------------------------------------------------------------------------------------

    def _wait(self, place: Place, command: Any) -> None:
        if self._count >= MOST_WAITING:
            self._make_room()
        self._count += 1
        key = answer_key(command)
        queue = self._waiting.get(key)
        earlier = queue[0] if queue is not None else self._append_with(key)
        if earlier is None:
            if key not in self._replies:
                self._ambiguous.discard(key)
        elif type(command) is c.SetupAppend and command.writer_id == getattr(earlier.command, "writer_id", None):
            self._ambiguous.add(key)  # Pravega's client sets a writer up again with the same id
        elif type(command) not in _BOTH_WAYS:
            text = f"{command.type_name} has the request id {key} of {earlier.command.type_name}, which waits"
            self._broken("request-id-reuse", place, text, also=earlier.place)
        if queue is None:
            queue = self._waiting[key] = deque()
        queue.append(Waiting(command, place))

    def _make_room(self) -> None:
        if self._count >= MOST_WAITING:
            self._drop()
            self._open("lost-write", TOO_MANY)
        self._replies.clear()
        self._dropped = True

    def _append_with(self, key: int | str) -> Waiting | None:
        """Returns a pending append with a request id."""
        if key not in self._replies:
            return None
        appends = chain.from_iterable(writer.appends for writer in self._writers.values())
        return next((append[2] for append in appends if append[1] == key), None)

    def _set_up(self, place: Place, command: Any) -> None:
        writer = self._writer(command.writer_id)
        self._lapsed |= {id(append[2]): append for append in writer.unanswered()}
        for request in [*islice(self._lapsed, max(0, len(self._lapsed) - MOST_WAITING))]:
            del self._lapsed[request]
        writer.set_up()
        if writer.key is None:  # appends may follow before the reply
            writer.name_segment(command.segment, self._is_judged)
        flow = flow_of(command.request_id)
        if flow > 0:
            holder = self._flows.get(flow)
            self._flows[flow] = _Tenure(command.writer_id, place)
            if holder is not None and holder.writer != command.writer_id:
                appends = (self._lapsed.values(), *(writer.unanswered() for writer in self._writers.values()))
                waits = sum(append[3] is holder for append in chain(*appends))
                if waits:
                    text = f"flow {flow} has {waits} unanswered appends of writer {holder.writer}"
                    self._broken("flow-reuse", place, text, None, flow, also=holder.place)

    def _append(self, place: Place, command: Any, writer: ConnectionWriter, opened: tuple[Any, Place] | None) -> None:
        block = None
        if type(command) is c.AppendBlockEnd:
            number = command.last_event_number
            if opened is not None and self._is_of_block(place, command, *opened, set_up=writer.is_set_up):
                block = opened[0]
            if command.num_events <= 0:
                self._broken("no-events", place, "the append has no events", 1, command.num_events)
        else:
            number = command.event_number
        highest = writer.highest
        if highest is None or number > highest:
            writer.highest = number
        if writer.is_set_up and (number < 0 or (highest is not None and number < highest)):
            floor = max(highest or 0, 0)
            text = f"event {number} of writer {command.writer_id} follows event {floor}"
            self._broken("number-backwards", place, text, floor, number)
        replies, request_id = self._replies, command.request_id
        if self._count >= MOST_WAITING or len(replies) >= MOST_WAITING:
            self._make_room()
        self._count += 1
        tenure = self._flows.get(flow_of(request_id)) if self._flows else None
        writer.appends.append((number, request_id, _new(Waiting, (command, place)), tenure))
        writer.fresh += 1
        replies[request_id] = replies.get(request_id, 0) + 1
        self._sent(place, writer, command, number, block)

    def _writer(self, writer_id: Any) -> ConnectionWriter:
        writer = self._writers.get(writer_id.int)
        if writer is None:
            writer = self._writers[writer_id.int] = ConnectionWriter(writer_id)
        return writer

    def _is_of_block(self, place: Place, end: Any, block: Any, opened: Place, *, set_up: bool) -> bool:
        """Whether an end is of the writer of the open block; checks the block."""
        if block.writer_id.int != end.writer_id.int:
            text = f"the block is of writer {block.writer_id}, its end of writer {end.writer_id}"
            self._broken("writer-mismatch", place, text, also=opened)
            return False
        size, whole = len(block.data), end.size_of_whole_events
        if not 0 <= whole <= size:
            text = f"the block has {size} bytes, its end counts {whole} bytes of whole events"
            self._broken("whole-size", place, text, size, whole, also=opened)
        elif whole < size and set_up:
            head = bytes(block.data[whole : whole + HEADER_BYTES])
            if (
                len(head) < HEADER_BYTES
                or head[:4] not in (_PADDING, PARTIAL)
                or int.from_bytes(head[4:], "big") > size - whole - HEADER_BYTES
            ):
                text = f"the {size - whole} bytes after the whole events are neither padding nor a partial event"
                self._broken("block-tail", place, text, also=opened)
            elif head[:4] == _PADDING and len(end.data):
                text = f"the end of a padded block has {len(end.data)} bytes of data"
                self._broken("padded-data", place, text, 0, len(end.data), also=opened)
        return True

    # --- replies ------------------------------------------------------------------------------------------------------

    def _acknowledged(self, place: Place, command: c.DataAppended) -> list[Waiting]:
        """Takes an acknowledgement; returns the appends that it covers."""
        number = command.event_number
        writer = self._writers.get(command.writer_id.int) or self._writer(command.writer_id)
        if writer.acked is None or number > writer.acked:
            writer.acked = number
        answered = self._covered(writer, number)
        replies, request_id = self._replies, command.request_id
        if replies.get(request_id) == 1:  # nearly always
            del replies[request_id]
        else:
            self._reply_to_append(place, command, request_id, ())
        return answered

    def _covered(self, writer: ConnectionWriter, number: int) -> list[Waiting]:
        """Removes and returns the pending appends of a writer up to an event number."""
        appends = writer.appends
        answered = []
        while appends and appends[0][0] <= number:
            answered.append(appends.popleft()[2])
        self._count -= len(answered)
        if self._lapsed:
            for request in answered:
                self._lapsed.pop(id(request), None)
        return answered

    def _answered(self, key: int | str) -> list[Waiting]:
        """Removes and returns the request with the key of a reply: the oldest one, or a failed append."""
        queue = self._waiting.get(key)
        if queue is None:
            appends = (writer.appends for writer in self._writers.values())
            failed = next((pending for pending in appends if pending and pending[0][1] == key), None)
            answered = [] if failed is None else [failed.popleft()[2]]
        else:
            answered = [queue.popleft()]
            if not queue:
                del self._waiting[key]
        self._count -= len(answered)
        return answered

    def _refused_read(self, offset: int | str) -> tuple[int | str, list[Waiting]]:
        """Returns the key of a read of an offset, and the read: a refused token has it in place of the request id."""
        for key, queue in self._waiting.items():
            if type(queue[0].command) is c.ReadSegment and queue[0].command.offset == offset:
                return key, self._answered(key)
        return offset, []

    def _compare(self, place: Place, reply: Any, request: Waiting) -> None:
        name = request.command.type_name
        is_answer = reply.type_name in ANSWERS[name] or answer_key(reply) in self._ambiguous
        if not is_answer and not reply.is_failure:
            self._broken("reply-kind", place, f"{reply.type_name} answers {name}", also=request.place)

    def _reply_to_append(self, place: Place, reply: Any, key: int | str, failed: Sequence[Waiting]) -> None:
        """Takes a reply with the request id of an append, or of no request."""
        count = self._replies.pop(key, 0)
        if count > 1:
            self._replies[key] = count - 1
        if count and failed and failed[-1].command.request_id == key:
            self._compare(place, reply, failed[-1])
        elif count:
            if reply.type_name not in _TO_APPENDS and not reply.is_failure:
                self._broken("reply-kind", place, f"{reply.type_name} answers an append")
        elif key in self._waiting:
            self._compare(place, reply, *self._answered(key))
        elif self._is_whole and not self._dropped:
            text = f"no request waits for {reply.type_name} with request id {key}"
            self._broken("reply-without-request", place, text)
        else:
            self._open("reply-without-request", TOO_MANY if self._dropped else "the recording began after the opening")

    def _refuse(self, request_id: int | str) -> None:
        for writer in self._writers.values():
            if any(append[1] == request_id for append in writer.appends):
                writer.appends = deque(
                    (*append[:3], None) if append[1] == request_id else append for append in writer.appends
                )
        self._lapsed = {request: append for request, append in self._lapsed.items() if append[1] != request_id}
