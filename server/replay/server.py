"""A server that answers clients from a trace.

    async with TraceServer(records, mode="match") as server:
        connect(server.host, server.port)
    assert not server.problems and not server.unused()

A request that is not in the trace, or in the mode "strict" not the next request, is a `Problem`: it is answered with an
error, closes the connection, or is forwarded to another store, such as a mock, whose replies are returned unchanged. A
Hello that the trace lacks is not a problem, because no client continues without an answer to it. Bytes that break the
protocol are a problem, and close the connection.

`start_controller` starts a controller, which answers the calls of the trace by the same rules. If the trace has no
calls, and calls are not forwarded, the controller knows the streams that the trace names.

Clients may retry for minutes after an error or a closed connection. NoSuchSegment stops a client that asks the
controller for successors and gets none. So a failed server, after the first problem with missing="fail" or after its
deadline, answers every request with NoSuchSegment, except set-ups, which clients would repeat.

Invariants: replies leave in the order of the requests that they answer, at once, or with the delays of the trace,
scaled; a stopped server leaves no connection and no timer. While a client does not read its replies, the server reads
neither the client nor the other store. Data queued for forwarding, delayed replies and incomplete frames are bounded,
too.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypedDict, cast, get_args
from uuid import UUID

import msgspec

from segstore.server.config import check_choice
from segstore.server.net import listening_on, stop_accepting
from segstore.server.replay.matching import Mode, Replay
from segstore.server.replay.problem import Problem, broken, call_problem, problem
from segstore.server.replay.script import ScriptedReply, Step, read_script, type_of
from segstore.wire import Command, FrameDecoder, WireError, encode
from segstore.wire import commands as c
from segstore.wire.blocks import Append, AppendBlockDecoder, owned
from segstore.wire.endpoint import Endpoint
from segstore.wire.protocol import HELLO, ClientProtocol, frames_of
from segstore.wire.trace import CONTROLLER, Record, segments_of

if TYPE_CHECKING:
    from segstore.server.controller.api import ControllerServer
    from segstore.server.replay.calls import CallReplay, CallStep, LeftOut
    from segstore.server.replay.recorded import RecordedController
    from segstore.wire.trace import Call

Missing = Literal["error", "close", "pass", "fail"]

_SLOWEST: Final = 0.001
_FASTEST: Final = 1_000_000
_MOST_PASSED_BYTES: Final = 64 * 1024 * 1024
_MOST_PROBLEM_BYTES: Final = 64 * 1024 * 1024
_PROBLEM_BYTES: Final = 512
"""Estimated overhead of a problem, in addition to its frames."""
_MOST_WITH_NEAR: Final = 100
"""The first problems list the nearest requests of the trace; comparing takes time."""
_MOST_HELD_BYTES: Final = 512 * 1024 * 1024
"""Maximum size of incomplete frames and open blocks of all clients together."""
_MOST_DELAYED: Final = 4096
"""While this many replies to a client are delayed, the client is not read."""
_STEP: Final = 64
"""Requests of a client that are answered before other clients have their turn."""
_RECENT: Final = 20
_NO_EVENT: Final = -1
_CONNECT_S: Final = 10.0


def check_pace(pace: float | None) -> None:
    """Raises ValueError for a multiple of the recorded speed that is too small to see an end, or is no number."""
    if pace is not None and not _SLOWEST <= pace <= _FASTEST:
        raise ValueError(f"pace must be from {_SLOWEST} to {_FASTEST:,}, not {pace:g}")


class TraceOptions(TypedDict, total=False):
    """The keyword arguments of `TraceServer`."""

    mode: Mode
    missing: Missing
    upstream: tuple[str, int] | None
    upstream_controller: tuple[str, int] | None
    pace: float | None
    tell: Callable[[Problem], object] | None
    timeout_s: float | None
    host: str
    port: int


class Taken(NamedTuple):
    """A request that a client made, and how it was answered. number: from 1. connection: the client's, from 1, or
    `CONTROLLER` for a controller call, whose method is `type_name`.
    """

    number: int
    connection: int
    type_name: str
    segments: tuple[str, ...]
    event_number: int | None
    outcome: str

    def __str__(self) -> str:
        about = f" of {', '.join(self.segments)}" if self.segments else ""
        event = "" if self.event_number is None else f" event {self.event_number}"
        connection = "to the controller" if self.connection == CONTROLLER else f"on connection {self.connection}"
        return f"request {self.number}: {self.type_name}{about}{event} {connection}: {self.outcome}"


class TraceServer:
    """Listens and answers clients from a trace.

    records: the trace. mode: "strict" or "match", as in `Replay`. missing: reaction to a request that the trace does
    not answer: "error", "close", "pass" to forward it to the store at `upstream`, (host, port), or "fail" to refuse it
    and all later requests with NoSuchSegment. upstream_controller: (host, port) of the controller to which "pass"
    forwards controller calls; None to refuse them. timeout_s: after this time the server fails, too, and closes all
    connections. pace: 1 answers with the delays of the trace, 2 twice as fast, None without delay.
    problems: requests that the trace does not answer, up to 64 MiB of them. tell: called with each new problem.
    requests: number of requests so far. recent: the last requests. failure: why the server has failed, or "". calls:
    the controller calls of the trace; None without a controller, or without calls. left_out_calls: records that are not
    calls or cannot be answered, once a controller was started.
    held_bytes: size of incomplete frames and open blocks.
    """

    def __init__(
        self,
        records: Iterable[Record],
        *,
        mode: Mode = "strict",
        missing: Missing = "error",
        upstream: tuple[str, int] | None = None,
        upstream_controller: tuple[str, int] | None = None,
        pace: float | None = None,
        tell: Callable[[Problem], object] | None = None,
        timeout_s: float | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        check_choice("mode", mode, get_args(Mode))
        check_choice("missing", missing, get_args(Missing))
        if missing == "pass" and upstream is None:
            raise ValueError("upstream goes with missing='pass': give the (HOST, PORT) of a store that has the rest")
        if upstream is not None and missing != "pass":
            raise ValueError(f"upstream is only asked with missing='pass', and this is missing={missing!r}")
        if upstream_controller is not None and missing != "pass":
            raise ValueError("upstream_controller goes with missing='pass'")
        check_pace(pace)
        if timeout_s is not None and not 0 < timeout_s < math.inf:
            raise ValueError(f"timeout_s must be above 0 and finite, not {timeout_s}")
        self.replay = Replay(records, mode)
        self.calls: CallReplay | None = None
        self.left_out_calls: Sequence[LeftOut] = ()
        self._controller: ControllerServer | RecordedController | None = None
        self.missing = missing
        self.upstream = None if upstream is None else Endpoint(*upstream)
        self.upstream_controller = None if upstream_controller is None else Endpoint(*upstream_controller)
        self.pace = pace
        self.tell = tell
        self.timeout_s = timeout_s
        self.problems: list[Problem] = []
        self.failure = ""
        self._over = asyncio.Event()
        self._deadline: asyncio.TimerHandle | None = None
        self.connections = self.requests = 0
        self.recent: deque[Taken] = deque(maxlen=_RECENT)
        self.held_bytes = 0
        self._where = (host, port)
        self._server: asyncio.Server | None = None
        self._open: set[_Conversation] = set()
        self._problem_bytes = 0

    @property
    def host(self) -> str:
        return self._address[0]

    @property
    def port(self) -> int:
        return self._address[1]

    @property
    def _address(self) -> tuple[str, int]:
        if self._server is None or not self._server.sockets:
            raise RuntimeError("the server is not started")
        name = self._server.sockets[0].getsockname()
        return name[0], name[1]

    def unused(self) -> Counter[str]:
        """The requests and calls of the trace that no client has made so far, counted by command and method."""
        return self.replay.unused() + (Counter() if self.calls is None else self.calls.unused())

    @property
    def open_connections(self) -> list[int]:
        """The numbers of the clients' open connections."""
        return sorted(conversation.number for conversation in self._open)

    def took(self, *facts: Any) -> None:
        """Records a request for `recent`. facts: of `Taken`, without the number."""
        self.requests += 1
        self.recent.append(Taken(self.requests, *facts))

    def call(self, call: Call) -> CallStep | str:
        """Returns the traced call that answers a controller call, or the reason for its refusal."""
        assert self.calls is not None
        answer: CallStep | str
        if self.failure:
            answer, outcome = self.failure, "refused"
        elif (step := self.calls.answer(call)) is None:
            unanswered = call_problem(call, self.calls, compare=len(self.problems) < _MOST_WITH_NEAR)
            self.add(unanswered)
            answer, outcome = unanswered.sentence, f"a problem, missing={self.missing!r}"
        else:
            place = f"as call {step.number} of the trace" if step.number else "without the trace"
            answer, outcome = step, f"answered {place}"
        self.took(CONTROLLER, call.rpc, call.named, None, outcome)
        return answer

    def missed(self, most: int = 10) -> list[str]:
        """The first requests and calls of the trace that no client has made so far: place, command and fields."""
        calls = () if self.calls is None else islice(self.calls.missed(), most)
        return [*self.replay.missed(most), *calls]

    def add(self, unanswered: Problem) -> None:
        """Records a request that the trace does not answer."""
        self._problem_bytes += len(unanswered.frame) + len(unanswered.expected_frame or b"") + _PROBLEM_BYTES
        if self._problem_bytes <= _MOST_PROBLEM_BYTES:
            self.problems.append(unanswered)
        if self.tell is not None:
            self.tell(unanswered)
        if self.missing == "fail":
            self._fail(str(unanswered))

    def _fail(self, why: str) -> None:
        self.failure = self.failure or why
        self._over.set()

    def _too_late(self) -> None:
        self._fail(f"the trace was still answering clients after {self.timeout_s:g} s")
        for conversation in tuple(self._open):
            conversation.abort()

    async def wait_failed(self) -> str:
        """Waits until the server has failed or was stopped; returns why it failed, or ""."""
        await self._over.wait()
        return self.failure

    async def start(self) -> None:
        """Listens. Raises AddressInUse, CannotListen."""
        loop, (host, port) = asyncio.get_running_loop(), self._where
        with listening_on(host, port):
            self._server = await loop.create_server(lambda: _Conversation(self), host, port)
        if self.timeout_s is not None:
            self._deadline = loop.call_later(self.timeout_s, self._too_late)

    async def start_controller(self, records: Sequence[Record], host: str = "127.0.0.1", port: int = 0) -> Endpoint:
        """Starts a controller for clients, and returns its address. Call it once, after `start`.

        records: the whole trace, with its controller records. port: 0 picks a free port. Raises CannotListen.
        """
        from segstore.server.controller.api import ControllerServer  # imports gRPC
        from segstore.server.replay.calls import CallReplay
        from segstore.server.replay.controller import replay_controller
        from segstore.server.replay.recorded import RecordedController

        forwards = self.upstream_controller is not None
        calls = CallReplay(records, self.replay.mode, forwards=forwards)
        self.left_out_calls = calls.left_out
        if calls.steps or forwards:
            self.calls = calls
            self._controller = await RecordedController(self, calls).start(host, port)
        else:
            controller = replay_controller(read_script(records), self.host, self.port)
            self._controller = await ControllerServer(controller).start(host, port)
        return self._controller.endpoint

    async def stop(self) -> None:
        """Stops listening and closes all connections. May be called twice."""
        controller, self._controller = self._controller, None
        if controller is not None:
            await controller.aclose()
        server, self._server = self._server, None
        self._over.set()
        if self._deadline is not None:
            self._deadline.cancel()
        if server is not None:
            await stop_accepting(server)
            await asyncio.gather(*(conversation.end() for conversation in tuple(self._open)))
            await server.wait_closed()

    async def __aenter__(self) -> TraceServer:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()


class _Conversation(asyncio.Protocol):
    """A client's connection. writable: set while the client reads its replies."""

    def __init__(self, server: TraceServer) -> None:
        self._server = server
        self._decoder = FrameDecoder(unknown="keep")
        self._blocks = AppendBlockDecoder()
        self._transport: asyncio.Transport | None = None
        self._expected: deque[Step] | None = None
        self.number = 0
        self._timers: deque[asyncio.TimerHandle] = deque()
        self._last_at = 0.0
        self._passing: _Passing | None = None
        self._items: deque[Command | Append] = deque()
        self._broken: WireError | None = None
        self._has_ended = self._scheduled = False
        self._held_bytes = 0
        self._closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.writable = asyncio.Event()
        self.writable.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._server.connections += 1
        self.number = self._server.connections
        self._server._open.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
        self._transport = None
        self._items.clear()
        self._hold(0)
        if self._passing is not None:
            self._passing.close()
        self._server._open.discard(self)
        if not self._closed.done():
            self._closed.set_result(None)

    def pause_writing(self) -> None:
        self.writable.clear()
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        self.writable.set()
        self._advance_soon()

    def abort(self) -> None:
        """Breaks the connection."""
        if self._transport is not None:
            self._transport.abort()

    async def end(self) -> None:
        """Closes the connection and waits until it is closed."""
        self.abort()
        if self._passing is not None:
            await self._passing.aclose()
        await self._closed

    def data_received(self, data: bytes) -> None:
        if self._broken is None:
            commands = self._intact(self._decoder.feed, data)
            self._items.extend(owned(item)[0] for item in self._intact(self._blocks.feed_all, commands))
            self._hold(self._decoder.buffered_bytes + self._blocks.block_bytes)
        self._advance()

    def _intact(self, feed: Callable[[Any], Iterable[Any]], received: Any) -> Iterable[Any]:
        """Returns the results of a decoder; after an error, the results before it."""
        try:
            return feed(received)
        except WireError as error:
            self._broken = error
            return error.decoded

    def eof_received(self) -> bool:
        self._has_ended = True
        return bool(self._items or self._timers) or self._broken is not None

    def _advance_soon(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._advance)

    def _advance(self) -> None:
        """Answers one step of the requests, and resumes reading after the last."""
        self._scheduled = False
        for _ in range(_STEP):
            if (transport := self._transport) is None or transport.is_closing():
                return
            if not self.writable.is_set() or len(self._timers) >= _MOST_DELAYED:
                transport.pause_reading()
                return
            if self._items:
                self._take(self._items.popleft())
            elif self._broken is not None or self._has_ended:
                if self._timers:
                    return  # each delayed reply comes here again
                if self._broken is not None and not self._server.failure:
                    self._server.add(broken(self.number, self._broken))
                self.close()
            else:
                transport.resume_reading()
                return
        if transport is not None:
            transport.pause_reading()
            self._advance_soon()

    def _hold(self, size: int) -> None:
        server = self._server
        server.held_bytes += size - self._held_bytes
        self._held_bytes = size
        if server.held_bytes > _MOST_HELD_BYTES and self._transport is not None:
            self._transport.abort()

    def _take(self, item: Command | Append) -> None:
        # There are four cases: 1. the server has failed; 2. a Hello that the trace lacks; 3. the trace answers; 4. it
        # does not, and `missing` names the answer.
        server = self._server
        if server.failure:
            self._tell(item, "refused")
            self._refuse(item)
            return
        if isinstance(item, c.SetupAppend) and self._passing is not None:
            self._passing.set_ups.pop(item.writer_id, None)
        if self._answer_hello(item):
            return
        if self._expected is None:
            # Not earlier: a connection without requests is not in the script.
            self._expected = server.replay.connection()
            if self._answer_hello(item):
                return
        answer = server.replay.answer(item, self._expected)
        if answer is not None:
            if isinstance(item, c.SetupAppend) and server.missing == "pass":
                self._pass().set_ups[item.writer_id] = item
            self._tell(item, f"answered as request {answer.step.number} of the trace")
            self._send_replies(answer.replies, answer.closes)
            return
        unanswered = self._problem(item)
        server.add(unanswered)
        self._tell(item, f"a problem, missing={server.missing!r}")
        if server.missing == "fail":
            self._refuse(item)
        elif server.missing == "close":
            self.close()
        elif server.missing == "pass":
            self._pass().send(item)
        else:
            segment = getattr(item, "segment", "")
            request_id, code = getattr(item, "request_id", 0), c.ErrorMessageCode.ILLEGAL_ARGUMENT_EXCEPTION
            self.write(encode(c.ErrorMessage(request_id, segment, unanswered.sentence, code)))

    def _tell(self, item: Command | Append, outcome: str) -> None:
        event = item.event_number if isinstance(item, Append) else None
        self._server.took(self.number, type_of(item), segments_of(item), event, outcome)

    def _refuse(self, item: Command | Append) -> None:
        """Answers a request of a client that is to give up: it does if an append is refused, not if a set-up is."""
        match item:
            case c.Hello():
                self.write(encode(HELLO))
            case c.KeepAlive():
                self.write(encode(item))
            case c.SetupAppend():
                self.write(encode(c.AppendSetup(item.request_id, item.segment, item.writer_id, _NO_EVENT)))
            case _:
                segment = next(iter(segments_of(item)), "")
                self.write(encode(c.NoSuchSegment(getattr(item, "request_id", 0), segment, "", -1)))

    def _answer_hello(self, item: Command | Append) -> bool:
        """Answers a Hello that the trace lacks, unless the other store answers it."""
        greeting = self._server.replay.greeting(item, self._expected) if self._server.missing != "pass" else None
        if greeting is not None:
            self._tell(item, "answered without the trace")
            self._send_replies((greeting,), closes=False)
        return greeting is not None

    def _problem(self, item: Command | Append) -> Problem:
        replay = self._server.replay
        near = replay.near(item) if len(self._server.problems) < _MOST_WITH_NEAR else ()
        step = self._expected[0] if self._expected else None
        if step is not None and step.type_name == type_of(item):
            near = tuple(miss for miss in near if not miss.fields)  # the differences from the expected one are shown
        return problem(self.number, item, step, replay.ids.names, strict=replay.mode == "strict", near=near)

    def _send_replies(self, replies: Iterable[ScriptedReply], closes: bool) -> None:
        pace = self._server.pace
        loop = asyncio.get_running_loop()
        for reply in replies:
            if pace is None:
                self.write(reply.frame)
                continue
            # Never before the previous reply, which keeps the order.
            self._last_at = max(self._last_at, loop.time() + reply.delay_ns / 1e9 / pace)
            self._timers.append(loop.call_at(self._last_at, self._due, reply.frame))
        if closes:
            if pace is None:
                self.close()
            else:
                self._timers.append(loop.call_at(max(self._last_at, loop.time()), self.close))

    def _due(self, frame: bytes) -> None:
        self._timers.popleft()
        self.write(frame)
        self._advance_soon()

    def write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def _pass(self) -> _Passing:
        if self._passing is None:
            assert self._server.upstream is not None
            self._passing = _Passing(self, self._server.upstream)
        return self._passing

    def refused(self, item: Command | Append, why: str) -> None:
        """The other store has refused a request although the trace had answered it, or it could not be sent."""
        self._server.add(problem(self.number, item)._replace(refusal=why))


class _Passing:
    """A connection to another store for requests that the trace does not answer; its replies are returned unchanged.

    client: the client's connection. The store is not read while the client does not read its replies.
    set_ups: SetupAppends that the trace answered; a set-up is sent to the other store before its writer's first append,
    which waits for the answer. If the store refuses the set-up, the refusal answers the writer's appends.
    """

    def __init__(self, client: _Conversation, upstream: Endpoint) -> None:
        self._client = client
        self._upstream = upstream
        self._last: Command | Append = HELLO
        self._waiting: dict[UUID, list[Append]] = {}
        self._refusals: dict[UUID, Any] = {}
        self.set_ups: dict[UUID, c.SetupAppend] = {}
        self._protocol: ClientProtocol[c.SetupAppend] = ClientProtocol(decoder=FrameDecoder(unknown="keep"))
        self._writer: asyncio.StreamWriter | None = None
        self._early = bytearray()
        self._waiting_bytes = 0
        self._hello_hidden = True
        self._task = asyncio.create_task(self._run(), name="segstore replay forwards")

    def send(self, item: Command | Append) -> None:
        if isinstance(item, c.Hello):
            self._hello_hidden = False
            return  # the connection begins with a Hello anyway; from now on its answer is returned
        self._last = item
        writer = getattr(item, "writer_id", None)
        if isinstance(item, c.SetupAppend):
            self._refusals.pop(item.writer_id, None)
        elif isinstance(item, Append):
            if (set_up := self.set_ups.pop(item.writer_id, None)) is not None:
                self._refusals.pop(item.writer_id, None)
                self._waiting[item.writer_id] = []
                self._put(self._protocol.send(set_up, set_up))
            if writer in self._refusals:
                self._refuse(item)
                return
            if writer in self._waiting:
                self._waiting[item.writer_id].append(item)
                self._waiting_bytes += len(item.data)
                return
        self._put(frames_of(item))

    def _set_up(self, set_up: c.SetupAppend, reply: Command) -> None:
        """The store has answered a set-up that the trace had answered."""
        waiting = self._waiting.pop(set_up.writer_id, [])
        self._waiting_bytes -= sum(len(append.data) for append in waiting)
        if isinstance(reply, c.AppendSetup):
            for item in waiting:
                self._put(frames_of(item))
            return
        self._client.refused(set_up, f"the store at {self._upstream} answers {reply.type_name} for {set_up.segment}")
        self._refusals[set_up.writer_id] = reply
        for append in waiting:
            self._refuse(append)

    def _refuse(self, item: Append) -> None:
        self._client.write(encode(msgspec.structs.replace(self._refusals[item.writer_id], request_id=item.request_id)))

    def _put(self, data: bytes) -> None:
        if self._writer is None:
            self._early += data
            queued = len(self._early)
        else:
            self._writer.write(data)
            queued = self._writer.transport.get_write_buffer_size()
        if queued + self._waiting_bytes > _MOST_PASSED_BYTES:
            self._client.close()

    async def _run(self) -> None:
        try:
            async with asyncio.timeout(_CONNECT_S):
                reader, writer = await asyncio.open_connection(*self._upstream)
        except (OSError, OverflowError) as error:  # the latter for an impossible port
            why = str(error) or "it did not answer"
            self._client.refused(self._last, f"no connection to the store at {self._upstream}: {why}")
            self._client.close()
            return
        try:
            writer.write(self._protocol.hello() + self._early)
            self._writer = writer
            self._early.clear()
            while data := await reader.read(1 << 16):
                for command, set_ups in self._protocol.receive(data):
                    if isinstance(command, c.Hello) and self._hello_hidden:
                        self._hello_hidden = False
                    elif set_ups:
                        self._set_up(set_ups[-1], command)
                    else:
                        self._client.write(encode(command))
                await self._client.writable.wait()
            self._client.close()
        except (WireError, OSError):
            self._client.close()
        finally:
            writer.close()

    def close(self) -> None:
        self._task.cancel()

    async def aclose(self) -> None:
        """Closes the connection and waits until it is closed."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
