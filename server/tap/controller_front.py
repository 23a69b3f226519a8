"""A proxy for a controller's gRPC port that forwards calls unchanged and replaces addresses in the answers.

Calls of any unary method are forwarded as raw messages, with metadata, remaining time, initial and trailing metadata,
status and details unchanged; the controller has no methods of other kinds. Two answers contain addresses: `getURI` a
store's address, `getControllerServerList` the controllers' addresses. They are replaced with the tap's addresses. An
answer to these methods that cannot be decoded, or has no valid address, is forwarded unchanged and logged.

Invariants: a message has at most 64 MiB; each call is made upstream once; a client that cancels a call cancels it
upstream; after `aclose`, which can be called twice, no call and no channel remains. gRPC itself handles metadata whose
names begin with "grpc-" and the compression of messages.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final, Self

import grpc
from google.protobuf.message import DecodeError

from segstore.server.controller.api import (
    MOST_MESSAGE,
    Behaviour,
    CallOutcome,
    Calls,
    CallsInFlight,
    UpstreamController,
    end_call,
    sent_metadata,
)
from segstore.server.net import TlsFiles
from segstore.server.tap.probe import Probed
from segstore.wire.controller_api import METHODS, messages
from segstore.wire.endpoint import Endpoint

log = logging.getLogger(__name__)

_STORE: Final = METHODS["getURI"].path
_SILENT: Final = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
_SECURED: Final = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)
_CONTROLLERS: Final = METHODS["getControllerServerList"].path


class ControllerFront:
    """The proxy.

    controller: the address to which calls are forwarded. through: returns the address to give to clients for a store;
    its OSError is answered with UNAVAILABLE. published_host: the host name of this port for clients. trust: trusted
    authorities (PEM), b"" for gRPC's own; None to connect to the controller without TLS. calls: sees all calls.
    """

    def __init__(
        self,
        controller: Endpoint,
        through: Callable[[Endpoint], Awaitable[Endpoint]],
        published_host: str,
        *,
        trust: bytes | None = None,
        calls: Calls | None = None,
    ) -> None:
        self._in_flight = CallsInFlight(self._behaviour_of, MOST_MESSAGE, calls=calls)
        self._upstream = UpstreamController(controller, trust)
        self._through = through
        self._published_host = published_host
        self._reached = True

    async def start(self, host: str, port: int, tls: TlsFiles | None = None) -> Self:
        """Starts listening. Raises OSError if it cannot listen there."""
        controller = self._upstream.address
        if controller.port == port and controller.host in (host, self._published_host, "localhost"):
            raise OSError(errno.EINVAL, f"the controller at {controller} is this port itself")
        await self._in_flight.start(host, port, tls)
        return self

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return self._in_flight.port

    async def aclose(self, grace_s: float = 1.0) -> None:
        """Accepts no more calls, gives calls in flight `grace_s` seconds, then stops."""
        await self._in_flight.stop(grace_s)
        await self._upstream.aclose()

    async def probe(self, timeout_s: float) -> tuple[Probed, Endpoint | None]:
        """Asks the controller where a segment is. Returns whether it answered, and the store that it named, if any."""
        question = messages.SegmentId(streamInfo=messages.StreamInfo(scope="segstore", stream="probe"))
        what = f"the controller at {self._upstream.address}"
        answer = await self._upstream.call(_STORE, question.SerializeToString(), (), timeout_s)
        code = answer.code
        if code in _SILENT:
            return Probed(f"{what} does not answer: {answer.details or code.name}", answers=False), None
        if code in _SECURED:
            return Probed(f"{what} answers (it requires credentials)", secured=True), None
        if code is not grpc.StatusCode.OK:
            return Probed(f"{what} answers (getURI: {code.name})"), None
        try:
            uri = messages.NodeUri.FromString(answer.message)
            named = Endpoint.checked(uri.endpoint, uri.port) if uri.endpoint else None
        except DecodeError:
            return Probed(f"{what} does not answer: what listens there is no controller", answers=False), None
        except ValueError as error:
            why = f"it names a store that cannot be reached: {error}"
            return Probed(f"{what} does not answer: {why}", answers=False), None
        return Probed(f"{what} answers"), named

    def _behaviour_of(self, method: str) -> Behaviour:
        """Returns what forwards the calls of a method, whichever it is."""

        async def handle(message: bytes, context: Any) -> bytes:
            answer = await self._upstream.call(method, message, sent_metadata(context), context.time_remaining())
            if answer.initial:
                await context.send_initial_metadata(answer.initial)
            self._log_reachability(answer)
            if answer.code is grpc.StatusCode.OK:
                try:
                    answer = answer._replace(message=await self._replaced(method, answer.message))
                except OSError as error:  # no port for a store
                    log.warning("%s is answered UNAVAILABLE: %s", method, error)
                    code, details = grpc.StatusCode.UNAVAILABLE, f"segstore tap: {error}"
                    answer = answer._replace(code=code, details=details, trailing=())
            if answer.code is not grpc.StatusCode.OK:
                await end_call(context, answer.code, answer.details, *answer.trailing)
            context.set_trailing_metadata(answer.trailing)
            context.set_details(answer.details)
            return answer.message

        return handle

    def _log_reachability(self, answer: CallOutcome) -> None:
        """Logs once that the controller cannot be reached, until it is reached again."""
        reached = answer.code is not grpc.StatusCode.UNAVAILABLE
        if self._reached and not reached:
            log.warning("the controller at %s: %s", self._upstream.address, answer.details)
        self._reached = reached

    async def _replaced(self, method: str, message: bytes) -> bytes:
        """Returns an answer with its addresses replaced by the tap's."""
        try:
            if method == _STORE:
                uri = messages.NodeUri.FromString(message)
                if uri.endpoint:
                    door = await self._through(Endpoint.checked(uri.endpoint, uri.port))
                    uri.endpoint, uri.port = door.named_host, door.port
                    message = uri.SerializeToString()
            elif method == _CONTROLLERS and messages.ServerResponse.FromString(message).nodeURI:
                own = Endpoint(self._published_host, self.port)
                uri = messages.NodeUri(endpoint=own.named_host, port=own.port)
                message = messages.ServerResponse(nodeURI=[uri]).SerializeToString()
        except (DecodeError, ValueError) as error:
            log.warning("the answer to %s is forwarded unchanged: %s", method, error)
        return message
