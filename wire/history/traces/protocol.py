"""The rules of the protocol, checked frame by frame on one connection.

A reply answers the oldest request with its request id, or of its kind if it carries no id; each append may get a reply
of its own. An acknowledgement covers the appends of its writer up to its number, since the writer's last set-up; a
failure refuses all unacknowledged appends with its request id.

Invariants: nothing is raised, whatever the frames are. At most `MOST_WAITING` requests are held; when there are more,
they are dropped, and whether a later reply has a request stays open. Replies to requests before a recording began stay
open, too.

Source: `AppendRule` for append blocks, `segstore.wire.protocol` for pairs of requests and replies.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final, NamedTuple
from uuid import UUID

from segstore.wire.codec import HEADER_BYTES
from segstore.wire.commands import (
    AppendBlock,
    AppendBlockEnd,
    AuthTokenCheckFailed,
    ConditionalAppend,
    ConditionalBlockEnd,
    ConditionalCheckFailed,
    DataAppended,
    Hello,
    KeepAlive,
    Padding,
    SetupAppend,
)
from segstore.wire.errors import WireError
from segstore.wire.history.facts import Broken, Finding, Key, Open, Place, Waiting
from segstore.wire.protocol import ANSWERS, answer_key
from segstore.wire.request_id import flow_of
from segstore.wire.schema import COMMANDS, Command, Unknown
from segstore.wire.trace import Direction, Record

APPENDS: Final = frozenset({AppendBlockEnd, ConditionalAppend, ConditionalBlockEnd})
"""The commands that complete an append and get a reply."""
APPENDING: Final = APPENDS | {Padding, SetupAppend, AppendBlock}
"""The commands that must not occur between an append block and its end."""
MOST_WAITING: Final = 100_000
TOO_MANY: Final = "too many requests wait on the connection"
_BOTH_WAYS: Final = frozenset({Hello, KeepAlive})
_TO_STORE: Final = (
    frozenset(kind for kind in COMMANDS.values() if kind.type_name in ANSWERS) | {AppendBlock}
) - _BOTH_WAYS
_TO_CLIENT: Final = frozenset(kind for kind in COMMANDS.values() if kind.is_reply) - _BOTH_WAYS
_ANSWERED: Final = frozenset(kind for kind in COMMANDS.values() if kind.type_name in ANSWERS)
_PADDING: Final = (-1).to_bytes(4, "big", signed=True)
_PARTIAL: Final = (-2).to_bytes(4, "big", signed=True)


class _Tenure(NamedTuple):
    """A flow since a writer was set up on it."""

    writer: UUID
    place: Place


_Unanswered = tuple[int, int, _Tenure | None]
"""An append that is neither acknowledged nor refused: its event number, request id, and the tenure of its flow."""


@dataclass(slots=True)
class _Writer:
    """A writer since it was set up. set_up: whether that was seen. appends: a few may be answered already."""

    set_up: bool
    highest: int | None = None
    acked: int | None = None
    appends: deque[_Unanswered] = field(default_factory=deque)

    def unanswered(self) -> list[_Unanswered]:
        return [append for append in self.appends if self.acked is None or append[0] > self.acked]


class ProtocolCheck:
    """Checks the frames of one connection. is_whole: whether its opening was recorded."""

    def __init__(self, key: Key, *, is_whole: bool) -> None:
        self._key = key
        self._is_whole = is_whole
        self._is_closed = False
        self._silent = set(Direction)
        """The directions without a frame so far."""
        self._last: tuple[Any, Place] | None = None
        """The last command of `APPENDING`."""
        self._waiting: dict[int | str, tuple[str, Place] | deque[tuple[str, Place]]] = {}
        """Key of replies → type names and places of the requests that wait for such a reply."""
        self._count = 0
        self._dropped = False
        self._writers: dict[int, _Writer] = {}
        self._flows: dict[int, _Tenure] = {}
        self._lapsed: list[_Unanswered] = []
        """Appends that were unanswered when their writer was set up again."""
        self._found: list[Finding] = []
        self._loose: tuple[Direction, Place, int] | None = None
        """Bytes that form no frame: their direction, place and number, until it is known who closed the connection."""

    def closed(self, record: Record) -> list[Finding]:
        """Takes the close of the connection. If the peer closes it in the middle of a frame, the sender is not to
        blame."""
        self._is_closed = True
        loose, self._loose = self._loose, None
        if loose is not None and loose[0] is not record.direction:
            return [Open("frames-only", self._key, "the receiver closed the connection")]
        return [] if loose is None else self._loose_frame(*loose[1:])

    def loose_bytes(self, place: Place, record: Record) -> list[Finding]:
        """Takes bytes that form no frame."""
        self._after_close(place, "bytes")
        before, self._loose = self._loose, (record.direction, place, len(record.data))
        return self._take() if before is None else self._loose_frame(*before[1:])

    def end(self) -> list[Finding]:
        """Called after the last record of the connection."""
        loose, self._loose = self._loose, None
        if loose is not None and not self._is_closed:
            return [Open("frames-only", self._key, "the recording ended")]
        return [] if loose is None else self._loose_frame(*loose[1:])

    def _loose_frame(self, place: Place, size: int) -> list[Finding]:
        self._broken("frames-only", place, f"{size} bytes form no frame")
        return self._take()

    def undecodable(self, place: Place, record: Record, error: WireError) -> list[Finding]:
        """Takes a frame that does not decode."""
        if len(record.data) < HEADER_BYTES:
            self._silent.discard(record.direction)
            self._after_close(place, "a frame")
        else:
            code = int.from_bytes(record.data[:4], "big", signed=True)
            self._frame(place, record.direction, COMMANDS.get(code, Unknown), code)
        self._broken("decodes", place, str(error))
        return self._take()

    def request(self, place: Place, command: Any) -> Sequence[Finding]:
        """Takes a frame from the client.

        Of the commands of `APPENDING`, a set-up starts a writer, a block and an append need a writer, and an append may
        end a block.
        """
        kind = type(command)
        if self._silent or self._is_closed or kind not in _TO_STORE:
            self._frame(place, Direction.REQUEST, kind, command.code)
        if kind in APPENDING:
            last, self._last = self._last, (command, place)
            block = last if last is not None and type(last[0]) is AppendBlock else None
            if block is not None and kind is not AppendBlockEnd:
                text = f"{command.type_name} follows the append block of writer {block[0].writer_id}, which is open"
                self._broken("block-open", place, text, also=block[1])
            if kind is SetupAppend:
                self._set_up(place, command)
            elif kind is not Padding:
                writer = self._writers.get(command.writer_id.int) or self._writer(command.writer_id)
                if self._is_whole and not writer.set_up:
                    self._broken("writer-unknown", place, f"writer {command.writer_id} appends without a set-up")
                if kind is not AppendBlock:
                    self._append(place, command, writer, block)
        if kind in _ANSWERED:
            self._wait(place, command)
        return self._take() if self._found else ()

    def reply(self, place: Place, command: Any, answered: Sequence[Waiting]) -> Sequence[Finding]:
        """Takes a frame from the store. answered: the requests that it answers, oldest first."""
        kind = type(command)
        if self._silent or self._is_closed or kind not in _TO_CLIENT:
            self._frame(place, Direction.REPLY, kind, command.code)
        if command.is_reply:
            key = command.request_id if kind is DataAppended else answer_key(command)
            if kind is AuthTokenCheckFailed and key not in self._waiting and answered:
                key = answer_key(answered[0].command)  # it has the offset of a read in place of the request id
            request = self._answered(key)
            if request is None:
                self._unasked(place, command, key)
            elif command.type_name not in ANSWERS[request[0]] and not command.is_failure:
                self._broken("reply-kind", place, f"{command.type_name} answers {request[0]}", also=request[1])
            if kind is DataAppended:
                self._acknowledge(command)
            elif command.is_failure or kind is ConditionalCheckFailed:
                self._refuse(key)
        return self._take() if self._found else ()

    def _take(self) -> list[Finding]:
        found, self._found = self._found, []
        return found

    def _broken(
        self,
        rule: str,
        place: Place,
        text: str,
        expected: int | None = None,
        actual: int | None = None,
        *,
        also: Place | None = None,
    ) -> None:
        places = (place,) if also is None else (also, place)
        self._found.append(Broken(rule, self._key, places, text, expected, actual))

    def _after_close(self, place: Place, what: str) -> None:
        if self._is_closed:
            self._broken("after-close", place, f"{what} on a closed connection")

    def _frame(self, place: Place, direction: Direction, kind: type[Command], code: int) -> None:
        """Checks what concerns frames of any kind."""
        self._after_close(place, kind.type_name)
        if direction in self._silent:
            self._silent.remove(direction)
            if self._is_whole and kind is not Hello:
                self._broken("hello-first", place, f"the first {direction.name.lower()} is {kind.type_name}")
        if kind is Unknown:
            self._broken("known-command", place, f"the type code {code} is unknown", None, code)
        elif kind in (_TO_STORE if direction is Direction.REPLY else _TO_CLIENT):
            self._broken("direction", place, f"{kind.type_name} goes the wrong way")

    # --- requests -----------------------------------------------------------------------------------------------------

    def _wait(self, place: Place, command: Any) -> None:
        kind = type(command)
        key = command.request_id if kind in APPENDS else answer_key(command)
        waiting, request = self._waiting.get(key), (command.type_name, place)
        if waiting is None:
            self._waiting[key] = request
        else:
            queue = waiting if isinstance(waiting, deque) else deque((waiting,))
            if kind not in APPENDS and kind not in _BOTH_WAYS:
                text = f"{command.type_name} has the request id {key} of {queue[0][0]}, which waits"
                self._broken("request-id-reuse", place, text, also=queue[0][1])
            queue.append(request)
            self._waiting[key] = queue
        self._count += 1
        if self._count > MOST_WAITING:
            self._waiting.clear()
            for writer in self._writers.values():
                writer.appends.clear()
            self._lapsed.clear()
            self._count, self._dropped = 0, True

    def _set_up(self, place: Place, command: Any) -> None:
        before = self._writers.get(command.writer_id.int)
        if before is not None:
            self._lapsed += before.unanswered()
        self._writers[command.writer_id.int] = _Writer(set_up=True)
        flow = flow_of(command.request_id)
        if flow > 0:
            holder = self._flows.get(flow)
            self._flows[flow] = _Tenure(command.writer_id, place)
            if holder is not None and holder.writer != command.writer_id:
                appends = (self._lapsed, *(writer.unanswered() for writer in self._writers.values()))
                waits = sum(append[2] is holder for append in chain(*appends))
                if waits:
                    text = f"flow {flow} has {waits} unanswered appends of writer {holder.writer}"
                    self._broken("flow-reuse", place, text, None, flow, also=holder.place)

    def _append(self, place: Place, command: Any, writer: _Writer, block: tuple[Any, Place] | None) -> None:
        if type(command) is AppendBlockEnd:
            number = command.last_event_number
            if block is not None:
                self._block(place, command, *block, set_up=writer.set_up)
            if command.num_events <= 0:
                self._broken("no-events", place, "the append has no events", 1, command.num_events)
        else:
            number = command.event_number
        highest = writer.highest
        if writer.set_up and (number < 0 or (highest is not None and number < highest)):
            floor = max(highest or 0, 0)
            text = f"event {number} of writer {command.writer_id} follows event {floor}"
            self._broken("number-backwards", place, text, floor, number)
        if highest is None or number > highest:
            writer.highest = number
        if writer.acked is None or number > writer.acked:
            request_id = command.request_id
            tenure = self._flows.get(flow_of(request_id)) if self._flows else None
            writer.appends.append((number, request_id, tenure))

    def _writer(self, writer_id: Any) -> _Writer:
        writer = self._writers.get(writer_id.int)
        if writer is None:
            writer = self._writers[writer_id.int] = _Writer(set_up=False)
        return writer

    def _block(self, place: Place, end: Any, block: Any, opened: Place, *, set_up: bool) -> None:
        if block.writer_id.int != end.writer_id.int:
            text = f"the block is of writer {block.writer_id}, its end of writer {end.writer_id}"
            self._broken("writer-mismatch", place, text, also=opened)
            return
        size, whole = len(block.data), end.size_of_whole_events
        if not 0 <= whole <= size:
            text = f"the block has {size} bytes, its end counts {whole} bytes of whole events"
            self._broken("whole-size", place, text, size, whole, also=opened)
        elif whole < size and set_up:
            head = bytes(block.data[whole : whole + HEADER_BYTES])
            if (
                len(head) < HEADER_BYTES
                or head[:4] not in (_PADDING, _PARTIAL)
                or int.from_bytes(head[4:], "big") > size - whole - HEADER_BYTES
            ):
                text = f"the {size - whole} bytes after the whole events are neither padding nor a partial event"
                self._broken("block-tail", place, text, also=opened)
            elif head[:4] == _PADDING and len(end.data):
                text = f"the end of a padded block has {len(end.data)} bytes of data"
                self._broken("padded-data", place, text, 0, len(end.data), also=opened)

    # --- replies ------------------------------------------------------------------------------------------------------

    def _answered(self, key: int | str) -> tuple[str, Place] | None:
        waiting = self._waiting.pop(key, None)
        if waiting is None:
            return None
        self._count -= 1
        if not isinstance(waiting, deque):
            return waiting
        request = waiting.popleft()
        if waiting:
            self._waiting[key] = waiting
        return request

    def _unasked(self, place: Place, command: Command, key: int | str) -> None:
        if self._is_whole and not self._dropped:
            text = f"no request waits for {command.type_name} with request id {key}"
            self._broken("reply-without-request", place, text)
        else:
            why = TOO_MANY if self._dropped else "the recording began after the opening"
            self._found.append(Open("reply-without-request", self._key, why))

    def _acknowledge(self, command: DataAppended) -> None:
        number, writer = command.event_number, self._writers.get(command.writer_id.int)
        if writer is None:
            writer = self._writer(command.writer_id)
        if writer.acked is None or number > writer.acked:
            writer.acked, appends = number, writer.appends
            while appends and appends[0][0] <= number:
                appends.popleft()

    def _refuse(self, request_id: int | str) -> None:
        for writer in self._writers.values():
            if any(append[1] == request_id for append in writer.appends):
                writer.appends = deque(append for append in writer.appends if append[1] != request_id)
        self._lapsed = [append for append in self._lapsed if append[1] != request_id]
