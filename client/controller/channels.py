"""Controller calls over several nodes: one gRPC channel per node, with node selection above gRPC.

gRPC's own reconnects and retries are bypassed: a channel that is no longer ready is closed, its node becomes
DISCONNECTED, and `NodeStates` chooses the next node and its set-up timeout.

Invariants: every call ends by its deadline; a timed-out set-up leaves no channel; after `aclose`, which can be called
twice, no task or channel is left. A call that is lost because its node shuts down or its connection breaks is repeated
at another node if its method is repeatable; otherwise it fails with OutcomeUnknown. Follows KIP-601 (seed 601.5).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import nullcontext
from random import Random
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import grpc
import msgspec
from google.protobuf.message import DecodeError, Message

from segstore.client.config import ClientSettings
from segstore.client.connection import Basic, Bearer, Credentials, Endpoint, NodeState, NodeStates, warn_if_unencrypted
from segstore.client.errors import (
    ClientError,
    Closed,
    NoNodeAvailable,
    NoSuchStream,
    OutcomeUnknown,
    PeerRefused,
    ProtocolViolation,
    RequestRejected,
    RequestTimedOut,
    TokenRefused,
)
from segstore.client.lifecycle import check_loop
from segstore.wire.controller_api import METHODS, OUTCOME_UNKNOWN

if TYPE_CHECKING:
    from segstore.client.telemetry import Telemetry

log = logging.getLogger(__name__)

M = TypeVar("M", bound=Message)

_OPTIONS: Final = (
    ("grpc.enable_http_proxy", 0),  # stores are connected to directly, too, regardless of proxy variables
    ("grpc.enable_retries", 0),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_receive_message_length", 64 * 1024 * 1024),
)
_REFUSED: Final = frozenset({grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED})
_ASK_AGAIN: Final = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED})
"""gRPC servers end calls in flight with CANCELLED when they shut down."""
_FAILED_ONCE: Final = frozenset(
    {grpc.StatusCode.ABORTED, grpc.StatusCode.DATA_LOSS, grpc.StatusCode.DEADLINE_EXCEEDED}
    | {grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.INTERNAL, grpc.StatusCode.RESOURCE_EXHAUSTED}
    | {grpc.StatusCode.UNKNOWN}
)
"""`ControllerImpl` calls again after these, too. Repeatable calls are repeated, within `ClientSettings.retry`."""
_NOTICED_S: Final = 0.1
"""gRPC may end the calls of a lost connection, as if they were refused, a little earlier than its state changes."""


class NodeResponse(NamedTuple):
    """A response and the node that sent it."""

    message: Any
    node: Endpoint


class _Search(msgspec.Struct):
    """The search for a ready node: its start, its limits (also if all nodes refuse), and the attempts so far."""

    method: str
    began_s: float
    limit_ms: float
    refused_ms: float
    tried: int = 0


class ControllerChannels:
    """Channels to the nodes of one controller.

    Attributes:
        states: connection states of the nodes.
    """

    def __init__(
        self,
        endpoints: Sequence[Endpoint],
        settings: ClientSettings,
        *,
        tls_roots: bytes | None = None,
        tls: bool = False,
        random: Random | None = None,
        credentials: Credentials | None = None,
        telemetry: Telemetry | None = None,
    ) -> None:
        """Requires a running event loop.

        tls_roots: PEM of the trusted authorities; None uses gRPC's own. credentials: by default from the settings.
        telemetry: observes calls.
        """
        self._settings = settings
        self._telemetry = telemetry
        self._tls = grpc.ssl_channel_credentials(tls_roots) if tls else None
        self._credentials = credentials or _of(settings)
        if self._credentials is not None and not tls:
            warn_if_unencrypted(endpoints)
        self._loop = asyncio.get_running_loop()
        self._random = random or Random()
        self.states: NodeStates[Endpoint] = NodeStates(
            endpoints,
            timeouts=settings.setup_timeout,
            backoff=settings.reconnect_backoff,
            random=self._random,
            least_recently_tried=settings.least_recently_tried,
        )
        self._channels: dict[Endpoint, grpc.aio.Channel] = {}
        self._set_ups: dict[Endpoint, asyncio.Task[None]] = {}
        self._silent: set[Endpoint] = set()
        """Nodes whose failure to connect has been logged since they were last ready."""
        self._refusing: set[Endpoint] = set()
        """Nodes that refused the last connection attempt; a node that merely did not answer may be slow."""
        self._closing: set[asyncio.Task[None]] = set()
        self._calls: set[Any] = set()
        self._last_failure = "no node was tried"
        self._closed = False

    async def ask(self, method: str, request: Message, *, timeout_ms: float | None = None) -> NodeResponse:
        """Makes one unary call and returns the answer; the caller checks the status field in it.

        Raises NoNodeAvailable, PeerRefused (after retries until the deadline), RequestTimedOut, NoSuchStream (not
        found), TokenRefused, RequestRejected (after retries, if the method is repeatable and the status may change),
        ProtocolViolation, OutcomeUnknown, Closed.
        """
        check_loop(self._loop)
        with nullcontext() if self._telemetry is None else self._telemetry.calling(method):
            return await self._ask(method, request, timeout_ms)

    async def _ask(self, method: str, request: Message, timeout_ms: float | None) -> NodeResponse:
        limit_ms = self._settings.request_timeout_ms if timeout_ms is None else timeout_ms
        search = _Search(method, self._loop.time(), limit_ms, self._settings.refused_timeout_ms)
        deadline = search.began_s + limit_ms / 1000
        refusals = unavailable = failures = 0
        while True:
            shown = await self._authorization(method, limit_ms, deadline)
            node = await self._ready_node(search)
            channel = self._channels[node]
            ask = channel.unary_unary(
                METHODS[method].path,
                request_serializer=METHODS[method].request.SerializeToString,
                response_deserializer=bytes,
            )
            left_s = max(deadline - self._loop.time(), 0.001)
            call = ask(request, timeout=left_s, metadata=None if shown is None else (("authorization", shown),))
            self.states.sent(node)
            self._calls.add(call)
            try:
                return _decoded(await _answered(call), method, node)
            except grpc.aio.AioRpcError as error:
                if error.code() is grpc.StatusCode.UNAUTHENTICATED and shown is not None and not refusals:
                    refusals += 1
                    if self._credentials is not None and self._credentials.refused(shown):
                        continue
                is_repeated, pause_s = False, 0.0
                if error.code() in _FAILED_ONCE and METHODS[method].repeatable:
                    failures += 1
                    pause_s = self._settings.retry.delay_ms(failures, self._random) / 1000
                    is_in_time = self._loop.time() + pause_s < deadline
                    is_repeated = is_in_time and not self._settings.retry.exhausted(failures)
                if error.code() not in _ASK_AGAIN and not is_repeated:
                    raise _error(
                        method, node, error, limit_ms, _stream_of(request)
                    ) from None  # the status and its text are in it
                self._last_failure = f"{node}: {error.details()}"
                if channel.get_state() is not grpc.ChannelConnectivity.READY:
                    self._lost(node)
                    self._check_repeatable(method, node, request, error)
                    continue
                if is_repeated:
                    await asyncio.sleep(pause_s)
                    continue
                if not METHODS[method].repeatable:
                    await asyncio.sleep(_NOTICED_S)
                if not _was_refused(error) or channel.get_state() is not grpc.ChannelConnectivity.READY:
                    self._check_repeatable(method, node, request, error)
                unavailable += 1  # the node is up; it is the requested service that is unavailable
                pause_s = self._settings.reconnect_backoff.delay_ms(unavailable, self._random) / 1000
                if self._loop.time() + pause_s >= deadline:
                    text = f"{node} failed {method}: {error.details()}"
                    raise PeerRefused(text, endpoint=str(node), limit=limit_ms, method=method) from None
            except asyncio.CancelledError as error:
                task = asyncio.current_task()
                if task is None or task.cancelling() or not (self._closed or self._channels.get(node) is not channel):
                    raise
                if self._closed:
                    raise Closed("the controller's client was closed") from None
                self._last_failure = f"{node}: the connection was lost"
                self._check_repeatable(method, node, request, error)
                continue
            finally:
                self._calls.discard(call)
                self.states.answered(node)
            await asyncio.sleep(pause_s)

    @staticmethod
    def _check_repeatable(method: str, node: Endpoint, request: Message, cause: BaseException) -> None:
        """Raises OutcomeUnknown if the method must not be repeated."""
        if METHODS[method].repeatable:
            return
        stream = _stream_of(request)
        raise OutcomeUnknown(
            f"{node} was lost before it answered {method}" + (f" of {stream}" if stream else "") + "; "
            "the call may or may not have been applied",
            endpoint=str(node),
            stream=stream,
            method=method,
        ) from cause

    async def _authorization(self, method: str, limit_ms: float, deadline: float) -> str | None:
        if self._credentials is None:
            return None
        try:
            async with asyncio.timeout_at(deadline):
                return await self._credentials.authorization()
        except TimeoutError as cause:
            raise RequestTimedOut(
                f"there were no credentials for {method} within {limit_ms:.0f} ms", limit=limit_ms, method=method
            ) from cause

    # --- nodes ------------------------------------------------------------------------------------------------------

    def _now_ms(self) -> float:
        return self._loop.time() * 1000

    async def _ready_node(self, search: _Search) -> Endpoint:
        """Returns the least loaded connected node; connects to a node if necessary."""
        try:
            async with asyncio.timeout_at(search.began_s + search.limit_ms / 1000):
                while True:
                    if self._closed:
                        raise Closed("the controller's client is closed")
                    for node, channel in tuple(self._channels.items()):
                        if channel.get_state() is not grpc.ChannelConnectivity.READY:
                            self._lost(node)
                    chosen = self.states.least_loaded(self._now_ms())
                    if chosen is None:
                        wait_ms = max(self.states.wait_ms(self._now_ms()), 1)
                        if self._is_hopeless(search, wait_ms):
                            raise self._unreachable(search, refused=True)
                        await asyncio.sleep(wait_ms / 1000)
                    elif self.states[chosen].state is NodeState.READY:
                        return chosen
                    else:
                        search.tried += 1
                        await asyncio.shield(self._set_up(chosen))
        except TimeoutError as cause:
            raise self._unreachable(search) from cause

    def _is_hopeless(self, search: _Search, wait_ms: float) -> bool:
        """Whether all nodes refuse connections, and waiting again would exceed the limit for that case."""
        over_ms = (self._loop.time() - search.began_s) * 1000 + wait_ms
        return over_ms >= search.refused_ms and self._refusing.issuperset(self.states)

    def _unreachable(self, search: _Search, *, refused: bool = False) -> NoNodeAvailable:
        elapsed_ms = (self._loop.time() - search.began_s) * 1000
        times = f"{search.tried} attempt{'' if search.tried == 1 else 's'}"
        return NoNodeAvailable(
            f"no controller could be reached for {search.method} by {times} within {elapsed_ms:.0f} ms; "
            + self._last_failure,
            endpoint=",".join(map(str, self.states)),
            limit=search.refused_ms if refused else search.limit_ms,
            attempts=search.tried,
            method=search.method,
            elapsed_ms=round(elapsed_ms),
            refused=refused,
        )

    def _set_up(self, node: Endpoint) -> asyncio.Task[None]:
        task = self._set_ups.get(node)
        if task is None:
            timeout_ms = self.states.connecting(node, self._now_ms())
            task = self._loop.create_task(self._connect(node, timeout_ms), name=f"connecting to controller {node}")
            self._set_ups[node] = task
        return task

    async def _connect(self, node: Endpoint, timeout_ms: float) -> None:
        # gRPC lets an attempt take at least its minimum back-off, and the attempt outlives a closed channel until then.
        whole_ms = max(int(timeout_ms), 1)
        backoffs = [(f"grpc.{which}_reconnect_backoff_ms", whole_ms) for which in ("initial", "min", "max")]
        options = (*_OPTIONS, *backoffs)
        if self._tls is None:
            channel = grpc.aio.insecure_channel(str(node), options=options)
        else:
            channel = grpc.aio.secure_channel(str(node), self._tls, options=options)
        ready = False
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                ready = await _becomes_ready(channel)
            if not ready:
                speaks = "gRPC without TLS" if self._tls is None else "gRPC with TLS and a trusted certificate"
                self._last_failure = f"{node} could not be connected to, or does not speak {speaks}"
                self._refusing.add(node)
        except TimeoutError:
            self._refusing.discard(node)
            self._last_failure = f"{node} was not ready within {timeout_ms:.0f} ms"
        finally:
            del self._set_ups[node]
            if ready and not self._closed:
                self._channels[node] = channel
                self._silent.discard(node)
                self._refusing.discard(node)
                self.states.ready(node)
            else:
                # Log once: waiting callers retry many times a second.
                if not self._closed and node not in self._silent:
                    self._silent.add(node)
                    text = "controller %s; retrying while calls wait"
                    log.warning(text, self._last_failure, extra={"endpoint": str(node)})
                self.states.disconnected(node, self._now_ms())
                await channel.close(None)

    def _lost(self, node: Endpoint) -> None:
        channel = self._channels.pop(node, None)
        if channel is None:
            return  # already detected by another call
        self.states.disconnected(node, self._now_ms())
        # A node that shuts down cleanly answers its calls in flight.
        drained = channel.close(self._settings.request_timeout_ms / 1000)
        task = self._loop.create_task(drained, name=f"closing the channel to {node}")
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def aclose(self) -> None:
        """Cancels pending set-ups and closes the channels; calls in flight fail. Can be called twice."""
        self._closed = True
        tasks = [*self._set_ups.values()]
        for task in tasks:
            task.cancel()
        for call in self._calls:
            call.cancel()
        channels, self._channels = self._channels, {}
        await asyncio.gather(
            *tasks, *self._closing, *(channel.close(None) for channel in channels.values()), return_exceptions=True
        )


async def _answered(call: grpc.aio.UnaryUnaryCall[Any, Any]) -> Any:
    """Waits for a call's response; cancels the call if the wait is cancelled.

    The wait's own CancelledError is raised: gRPC's lacks the text by which anyio recognizes its scopes.
    """

    async def response() -> Any:
        return await call

    task = asyncio.get_running_loop().create_task(response(), name="waiting for the controller")
    try:
        await asyncio.wait([task])
        return task.result()
    finally:
        task.cancel()
        del task  # its error would keep it, and so the channel and a socket, until a garbage collection


def _decoded(answer: bytes, method: str, node: Endpoint) -> NodeResponse:
    try:
        return NodeResponse(METHODS[method].response.FromString(answer), node)
    except DecodeError as problem:
        raise ProtocolViolation(
            f"{node} answers {method} with {len(answer)} bytes that are no {METHODS[method].response.__name__}",
            endpoint=str(node),
            method=method,
        ) from problem


async def _becomes_ready(channel: grpc.aio.Channel) -> bool:
    """Whether the channel's first attempt to connect succeeds; it makes no second."""
    state = channel.get_state(try_to_connect=True)
    while state is not grpc.ChannelConnectivity.READY:
        if state in (grpc.ChannelConnectivity.TRANSIENT_FAILURE, grpc.ChannelConnectivity.SHUTDOWN):
            return False
        await channel.wait_for_state_change(state)
        state = channel.get_state()
    return True


def _was_refused(error: grpc.aio.AioRpcError) -> bool:
    """Whether a still connected node refused the call without applying it."""
    trailing: Any = error.trailing_metadata() or ()
    return error.code() is grpc.StatusCode.UNAVAILABLE and OUTCOME_UNKNOWN not in tuple(trailing)


def _of(settings: ClientSettings) -> Credentials | None:
    if settings.username is not None and settings.password is not None:
        return Basic(settings.username, settings.password.get_secret_value())
    token = settings.bearer_token
    if token is None:
        return None

    async def the_same() -> str:
        return token.get_secret_value()

    return Bearer(the_same)


def _stream_of(request: Message) -> str | None:
    info = getattr(request, "streamInfo", request)
    scope, stream = getattr(info, "scope", ""), getattr(info, "stream", "")
    return f"{scope}/{stream}" if isinstance(scope, str) and scope and stream else None


def _error(
    method: str, node: Endpoint, error: grpc.aio.AioRpcError, limit_ms: float, stream: str | None
) -> ClientError:
    code, details = error.code(), error.details()
    about = method if stream is None else f"{method} of {stream}"
    sentence = f"{about} at {node}: {details or code.name}"
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        slow = f"{node} did not answer {about} in time"
        return RequestTimedOut(slow, endpoint=str(node), stream=stream, limit=limit_ms)
    if code is grpc.StatusCode.NOT_FOUND:
        return NoSuchStream(sentence, endpoint=str(node), stream=stream, status=code.name)
    if code in _REFUSED:
        return TokenRefused(sentence, endpoint=str(node), stream=stream, status=code.name)
    return RequestRejected(sentence, endpoint=str(node), stream=stream, status=code.name)
