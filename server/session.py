"""One connection of a segment store, without its socket: commands and appends in, frames to write out.

Pure but for the store that it changes and the timers that it is given. Replies gather in `out`; whoever owns the socket
writes them, and looks at `ending` to see whether and how the connection ends.

Invariant: after `close` nothing in the store or in the service refers to the session, and its transient segments are
gone, once. A reply is in `out` only after the store has taken what it acknowledges.

Source: `AppendProcessor`, `WriterState`, `ServerConnectionInboundHandler`. The store here answers at once, so an append
is never overtaken by the next one: what the reference keeps for appends in flight (delayed errors) is not needed.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from typing import TYPE_CHECKING, Any
from uuid import UUID

from segstore.server.auth import AccessLevel, TokenError, TokenExpired
from segstore.server.replies import refusal
from segstore.server.store.errors import BadAttribute, BadOffset, StoreError
from segstore.wire import (
    AppendSetup,
    Buffer,
    Command,
    ConditionalCheckFailed,
    CreateTransientSegment,
    DataAppended,
    Hello,
    KeepAlive,
    SegmentCreated,
    SetupAppend,
    encode_parts,
)
from segstore.wire.block_decoder import Append
from segstore.wire.names import transient_name

if TYPE_CHECKING:
    from segstore.server.service import StoreService, TimerHandle

__all__ = ["Ending", "Session"]


class Ending(Enum):
    """How a connection ends."""

    NOT_YET = auto()
    FLUSHED = auto()
    """After all replies were written."""
    DROPPED = auto()
    """At once: the replies to what came in the same read are not written, as in the reference."""


class _Writer:
    """A writer that was set up: the number that it sent last and the one that was acknowledged last."""

    __slots__ = ("last_acknowledged", "last_stored")

    def __init__(self, last_event_number: int) -> None:
        self.last_stored = last_event_number
        self.last_acknowledged = last_event_number


class Session:
    """The state of one connection.

    Attributes:
        peer: "host:port" of the other side, for logs.
        admin: whether it came in on the admin port.
        out, out_bytes: frames to write and their size; taken with `take_out`.
        ending: whether the connection is to be closed, and how.
        why: one sentence on why it ends, None for a peer that went of its own accord.
    """

    __slots__ = (
        "_expiries",
        "_service",
        "_transients",
        "_writers",
        "admin",
        "ending",
        "on_reply",
        "out",
        "out_bytes",
        "peer",
        "reads",
        "why",
    )

    def __init__(self, service: StoreService, peer: str, *, admin: bool, on_reply: Callable[[], None]) -> None:
        self.peer = peer
        self.admin = admin
        self.out: list[Buffer] = []
        self.out_bytes = 0
        self.ending = Ending.NOT_YET
        self.why: str | None = None
        self.on_reply = on_reply
        self.reads: set[Any] = set()
        self._service = service
        self._writers: dict[tuple[str, int], _Writer] = {}
        self._transients: list[str] = []
        self._expiries: list[TimerHandle] = []

    @property
    def ended(self) -> bool:
        """Whether nothing more is to be carried out for this peer."""
        return self.ending is not Ending.NOT_YET

    # --- in -------------------------------------------------------------------------------------------------------

    def receive(self, item: Command | Append) -> None:
        """Carries out one command or append; its reply, if it has one now, is in `out`."""
        kind = type(item)
        if kind is Append:
            self._append(item)  # type: ignore[arg-type]  # `kind` says so
            return
        special = _SPECIAL.get(kind)
        if special is None:
            self._service.handle(self, item)  # type: ignore[arg-type]  # not an Append
        else:
            special(self, item)

    def end(self, why: str, ending: Ending = Ending.DROPPED) -> None:
        """Ends the connection; the first call counts."""
        if self.ending is Ending.NOT_YET:
            self.ending = ending
            self.why = why

    def close(self) -> None:
        """The connection is gone: drops what waits and deletes the transient segments that it created."""
        self.end("the peer closed the connection")
        for read in tuple(self.reads):
            self._service.forget_read(read)
        for expiry in self._expiries:
            expiry.cancel()
        self._expiries.clear()
        self._writers.clear()
        for name in self._transients:
            self._service.drop_transient(name)
        self._transients.clear()

    # --- out ------------------------------------------------------------------------------------------------------

    def reply(self, command: Command) -> None:
        """Queues a reply. Its payload may view the store's chunks: those never change while somebody views them."""
        for part in encode_parts(command):
            self.out.append(part)
            self.out_bytes += len(part)
        self.on_reply()

    def take_out(self) -> list[Buffer]:
        """The queued frames, in order; the caller writes them."""
        out, self.out, self.out_bytes = self.out, [], 0
        return out

    # --- commands of the connection ---------------------------------------------------------------------------------

    def _hello(self, command: Hello) -> None:
        ours = self._service.hello
        self.reply(ours)
        if command.low_version > ours.high_version or command.high_version < ours.low_version:
            self.end(
                f"it speaks wire versions {command.low_version} to {command.high_version}, "
                f"this store {ours.low_version} to {ours.high_version}",
                Ending.FLUSHED,
            )

    def _keep_alive(self, command: KeepAlive) -> None:
        self.reply(command)

    # --- appends ----------------------------------------------------------------------------------------------------

    def _setup_append(self, command: SetupAppend) -> None:
        if self.admin:
            self.end("SetupAppend is not served on the admin port")
            return
        service, segment, writer_id = self._service, command.segment, command.writer_id
        key = (segment, writer_id.int)
        try:
            token = service.authorize(segment, command.delegation_token, AccessLevel.READ_UPDATE)
            last = service.store.setup_append(segment, writer_id, now_ms=service.now_ms())
        except (StoreError, TokenError) as error:
            self._refuse_writer(error, command.request_id, segment, writer_id, "setting up append", -1)
            return
        self._writers[key] = _Writer(last)
        if token is not None and token.expires_s is not None:
            self._expiries.append(service.at(token.expires_s, lambda: self._expire(key)))
        self.reply(AppendSetup(command.request_id, segment, writer_id, last))

    def _expire(self, key: tuple[str, int]) -> None:
        if key in self._writers:
            self.end(f"the token of a writer of {key[0]!r} expired", Ending.FLUSHED)
            self.on_reply()

    def _append(self, append: Append) -> None:
        segment, writer_id, number = append.segment, append.writer_id, append.event_number
        writer = self._writers.get((segment, writer_id.int))
        if writer is None:
            self.end(f"writer {writer_id} appends to {segment!r} without having been set up")
            return
        if number < writer.last_stored:
            self.end(f"writer {writer_id} of {segment!r} sends event {number} after {writer.last_stored}")
            return
        expected = append.expected_offset
        service = self._service
        try:
            length = service.store.append(
                segment,
                writer_id,
                number,
                append.event_count,
                append.data,
                last_event_number=writer.last_stored,
                now_ms=service.now_ms(),
                expected_offset=-1 if expected is None else expected,
            )
        except BadOffset:
            self.reply(ConditionalCheckFailed(writer_id, number, append.request_id))
            return
        except StoreError as error:
            del self._writers[segment, writer_id.int]
            self._refuse_writer(error, append.request_id, segment, writer_id, "appending data", number)
            return
        writer.last_stored = number
        service.counters.appends += 1
        previous = writer.last_acknowledged
        if previous < number:
            writer.last_acknowledged = number
            self.reply(DataAppended(append.request_id, writer_id, number, previous, length))

    def _refuse_writer(
        self, error: Exception, request_id: int, segment: str, writer_id: UUID, operation: str, number: int
    ) -> None:
        reply = refusal(
            error,
            request_id=request_id,
            segment=segment,
            operation=operation,
            offset=number,
            writer_id=writer_id,
            with_trace=self._service.traces(self),
        )
        if reply is None:
            self.end(f"{operation} failed: {error}", Ending.FLUSHED)
            return
        self.reply(reply)
        if isinstance(error, (BadAttribute, TokenExpired)):
            self.end(f"{operation} failed: {error}", Ending.FLUSHED)

    def _create_transient(self, command: CreateTransientSegment) -> None:
        if self.admin:
            self.end("CreateTransientSegment is not served on the admin port")
            return
        service, parent, writer_id = self._service, command.parent_segment, command.writer_id
        random_part = service.random_hex32()
        name = transient_name(parent, writer_id, random_part)
        try:
            if service.settings.strict_auth:
                service.authorize(parent, command.delegation_token, AccessLevel.READ_UPDATE)
            service.store.create_transient_segment(parent, writer_id, random_part, now_ms=service.now_ms())
        except (StoreError, TokenError) as error:
            self._refuse_writer(error, command.request_id, name, writer_id, "createTransientSegment", -1)
            return
        self._transients.append(name)
        self.reply(SegmentCreated(command.request_id, name))


_SPECIAL: dict[type, Callable[[Session, Any], None]] = {
    Hello: Session._hello,
    KeepAlive: Session._keep_alive,
    SetupAppend: Session._setup_append,
    CreateTransientSegment: Session._create_transient,
}
