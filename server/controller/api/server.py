"""A served controller: executes its calls, for gRPC and for REST, and runs its due timers.

Invariants: the requests in flight take bounded memory. A call is answered only when all changes before it are durable.
Started work is completed even if its caller disconnects, as in Pravega. While the server is open, one task runs the due
timers; after `aclose`, which can be called twice, no task and no socket is left.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, Final, Self, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message

from segstore.server.controller.api.answers import end_refused, with_status
from segstore.server.controller.api.auth import Authority
from segstore.server.controller.api.caller import Caller
from segstore.server.controller.api.calls import Behaviour, Calls, end_call
from segstore.server.controller.api.in_flight import CallsInFlight, end_interrupted
from segstore.server.controller.api.service import serve
from segstore.server.controller.config import ControllerConfig
from segstore.server.controller.controller import Controller
from segstore.server.controller.errors import ControllerClosed, ControllerError, Interrupted, RequestsTooLarge
from segstore.server.durable import JournalFailed
from segstore.server.net import TlsFiles
from segstore.wire.controller_api import METHODS, OUTCOME_UNKNOWN, Method
from segstore.wire.endpoint import Endpoint

_log = logging.getLogger(__name__)

T = TypeVar("T")

_STREAMS_MAX: Final = 1_024
"""Maximum number of calls in flight per connection, including calls whose request has not arrived: gRPC needs 20 KB per
call. It refuses further calls, and more than 1,000 at once."""
_ENDING_S: Final = 1.0
"""How long interrupted calls may wait until their changes are durable."""
_HELD_MAX_BYTES: Final = 128 << 20
"""Maximum total size of the requests in flight."""
_GROWING: Final = {
    *("createScope", "createStream", "updateStream", "scale", "createKeyValueTable", "createTransaction"),
    *("createReaderGroup", "updateReaderGroup", "updateSubscriberStreamCut", "noteTimestampFromWriter"),
}
"""Methods that are refused when memory is full."""
_REQUEST_MAX_BYTES: Final = 1 << 20
_SEGMENT_BYTES: Final = 128
"""Room in a request for each segment of a stream. A cut that spans several epochs names more than that."""


def bounds(config: ControllerConfig) -> tuple[tuple[str, int], ...]:
    """Server options that bound the size of a request and the calls in flight of a connection."""
    return (
        ("grpc.max_receive_message_length", max(_REQUEST_MAX_BYTES, _SEGMENT_BYTES * config.max_segments)),
        ("grpc.max_concurrent_streams", _STREAMS_MAX),
    )


class ControllerServer:
    """A served controller, for calls that are passed to it, or with a socket of its own (`start`).

    Attributes:
        controller: the controller.
        behaviours: what serves its methods over gRPC, by their paths.
    """

    def __init__(
        self,
        controller: Controller,
        authority: Authority | None = None,
        servers: Callable[[], Sequence[Endpoint]] | None = None,
        settled: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """authority: checks permissions and issues tokens; None: everything is allowed, and there are no tokens.
        servers: returns the addresses of all controllers of the cluster for clients; None: this server's. settled:
        returns when all changes are durable; calls are answered only then, with UNAVAILABLE if it raises
        `JournalFailed`. None: no durability.
        """
        self.controller = controller
        self._served = serve(controller, servers or (lambda: (self.endpoint,)))
        self._authority = authority or Authority()
        self._settled = settled
        self._work: set[asyncio.Task[Any]] = set()
        self._held_bytes = 0
        self._closed = False
        self.behaviours = {method.path: self._behaviour(name, method) for name, method in METHODS.items()}
        self._in_flight: CallsInFlight | None = None
        self._keeper: asyncio.Task[None] | None = asyncio.create_task(self._keep(), name="controller")
        self._host = ""

    async def start(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        tls: TlsFiles | None = None,
        published_host: str | None = None,
        calls: Calls | None = None,
    ) -> Self:
        """Starts listening; port 0 picks a free port. The controller is not closed with the server.

        published_host: this server's host name for clients; with TLS a name in the certificate. None: `host`. calls:
        observes all calls.

        Raises `CannotListen`; `OSError` for a file of `tls`. The server is closed then.
        """
        self._host = published_host or host
        self._in_flight = CallsInFlight(self.behaviours.get, *bounds(self.controller.config), calls=calls)
        async with AsyncExitStack() as failed:
            failed.push_async_callback(self.aclose, 0)
            await self._in_flight.start(host, port, tls)
            failed.pop_all()
        return self

    @property
    def endpoint(self) -> Endpoint:
        """The server's address for clients."""
        return Endpoint(self._host, self.port)

    @property
    def port(self) -> int:
        return 0 if self._in_flight is None else self._in_flight.port

    async def aclose(self, grace_s: float = 1.0) -> None:
        """Accepts no more calls, gives calls in flight `grace_s` seconds, then cancels them and their work."""
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.cancel()
            await asyncio.gather(keeper, return_exceptions=True)
        if self._in_flight is not None:
            await self._in_flight.stop(grace_s)
        self._closed = True
        if cancelled := self._cancelled():
            await asyncio.wait(cancelled, timeout=_ENDING_S)
            self._cancelled()  # the rest waits for its changes to become durable
            await asyncio.gather(*cancelled, return_exceptions=True)

    async def interrupt(self) -> None:
        """Cancels the work of calls in flight and of timers; callers get UNAVAILABLE, as when the server stops."""
        keeper = self._keeper
        if keeper is None:
            return
        if self._in_flight is not None:
            self._in_flight.interrupt()
        keeper.cancel()
        try:
            await asyncio.gather(keeper, return_exceptions=True)
            while self._work:
                await asyncio.gather(*self._cancelled(), return_exceptions=True)
        finally:
            if self._keeper is keeper:  # not closed meanwhile
                self._keeper = asyncio.create_task(self._keep(), name=keeper.get_name())

    def _cancelled(self) -> tuple[asyncio.Task[Any], ...]:
        """Cancels the work of the calls in flight and returns it."""
        for work in self._work:
            work.cancel()
        return tuple(self._work)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def _keep(self) -> None:
        controller = self.controller
        while True:
            due_ms = controller.core.next_due_ms()
            wait_s = None if due_ms is None else max(due_ms - controller.now_ms(), 0) / 1000
            try:
                async with asyncio.timeout(wait_s):
                    await controller.core.wait_for_timer()
            except TimeoutError:
                await controller.run_due()

    async def execute(
        self,
        name: str,
        asked: bytes,
        authorization: str | None,
        prepare: Callable[[bytes, Caller], Callable[[], Awaitable[T]]],
    ) -> T:
        """Executes a call and returns its result.

        name: the method. asked: the request. authorization: the credentials in it, if any.
        prepare: parses the request and returns the work. Raises ControllerError, JournalFailed, and the errors of
        `prepare` and the work.
        """
        size = len(asked)
        work: asyncio.Task[T] | None = None
        gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._held_bytes + size > _HELD_MAX_BYTES:
            raise RequestsTooLarge
        self._held_bytes += size
        try:
            caller = Caller(self._authority, await self._authority.principal(authorization), gone)
            if self._closed:
                raise ControllerClosed
            if name in _GROWING:
                self.controller.core.memory.check(size)
            work = asyncio.create_task(self._settle(prepare(asked, caller)), name=f"{name} of a controller")
            self._work.add(work)
            work.add_done_callback(self._work.discard)
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            # There are three cases: the caller gave up before its work began, or later, or the work was interrupted.
            if work is None:
                raise
            if not work.cancelled():
                gone.set_result(None)
                work.add_done_callback(_abandoned)
                raise
            raise Interrupted from None
        finally:
            self._held_bytes -= size
            del work  # which has the error, whose traceback has this frame

    async def _settle(self, work: Callable[[], Awaitable[T]]) -> T:
        try:
            return await work()
        finally:  # a refusal reveals state, too
            await self.settled()

    async def settled(self) -> None:
        """Returns when all changes are durable. Raises JournalFailed."""
        if self._settled is not None:
            await self._settled()

    async def perform(self, name: str, request: Message, caller: Caller) -> Message:
        """Performs a method as a part of a call. Raises ControllerError."""
        response = await self._served[name](request, caller)
        return with_status(METHODS[name].response, "SUCCESS") if response is None else response

    def _behaviour(self, name: str, method: Method) -> Behaviour:
        async def perform(request: Message, caller: Caller) -> bytes:
            return (await self.perform(name, request, caller)).SerializeToString()

        def prepare(asked: bytes, caller: Caller) -> Callable[[], Awaitable[bytes]]:
            return partial(perform, method.request.FromString(asked), caller)

        async def handle(asked: bytes, context: Any) -> bytes:
            metadata = context.invocation_metadata() or ()
            authorization = next((str(value) for key, value in metadata if key == "authorization"), None)
            try:
                return await self.execute(name, asked, authorization, prepare)
            except DecodeError:
                await end_call(
                    context, grpc.StatusCode.INTERNAL, f"the request is not a {method.request.DESCRIPTOR.name}"
                )
            except Interrupted:
                await end_interrupted(context)
            except JournalFailed as error:
                await end_call(context, grpc.StatusCode.UNAVAILABLE, str(error), OUTCOME_UNKNOWN)
            except ControllerError as error:
                _log.debug("%s: %s", name, error)
                return await end_refused(name, error, context)

        return handle


def _abandoned(work: asyncio.Task[Any]) -> None:
    """Retrieves the error of a work whose caller has gone, and logs an unexpected error."""
    error = None if work.cancelled() else work.exception()
    if error is not None and not isinstance(error, ControllerError | JournalFailed):
        _log.error("unexpected error in %s, whose caller has gone: %.200r", work.get_name(), error)
