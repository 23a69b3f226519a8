"""Executes the controller's calls, for gRPC and for REST: authentication, durability, shutdown.

Invariants: the requests in flight take bounded memory. A call is answered only when all changes before it are durable.
Started work is completed even if its caller disconnects, as in Pravega.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeVar

from segstore.server.controller.api.auth import Authority
from segstore.server.controller.api.caller import Caller
from segstore.server.controller.api.service import Served
from segstore.server.controller.controller import Controller
from segstore.server.controller.errors import ControllerClosed, ControllerError, Interrupted, RequestsTooLarge
from segstore.server.durable import JournalFailed

log = logging.getLogger(__name__)

T = TypeVar("T")

_ENDING_S: Final = 1.0
"""How long interrupted calls may wait until their changes are durable."""
_HELD_MAX_BYTES: Final = 128 << 20
"""Maximum total size of the requests in flight."""
_GROWING: Final = {
    *("createScope", "createStream", "updateStream", "scale", "createKeyValueTable", "createTransaction"),
    *("createReaderGroup", "updateReaderGroup", "updateSubscriberStreamCut", "noteTimestampFromWriter"),
}
"""Methods that are refused when memory is full."""


class Executor:
    """Executes the calls of one controller. served: its gRPC methods by their names on the wire."""

    def __init__(
        self,
        controller: Controller,
        authority: Authority,
        served: Mapping[str, Served],
        settled: Callable[[], Awaitable[None]] | None,
    ) -> None:
        """settled: returns when all changes are durable; None: no durability."""
        self.controller = controller
        self.served = served
        self._authority = authority
        self._settled = settled
        self._work: set[asyncio.Task[Any]] = set()
        self._held_bytes = 0
        self._closed = False

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
        size, work = len(asked), None
        gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._held_bytes + size > _HELD_MAX_BYTES:
            raise RequestsTooLarge
        self._held_bytes += size
        try:
            work = await self._begin(name, asked, authorization, prepare, gone)
            del asked  # it may be large, and is not needed any more
            return await asyncio.shield(work)
        except asyncio.CancelledError:
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

    async def _begin(
        self,
        name: str,
        asked: bytes,
        authorization: str | None,
        prepare: Callable[[bytes, Caller], Callable[[], Awaitable[T]]],
        gone: asyncio.Future[None],
    ) -> asyncio.Task[T]:
        """Starts the work of a call once its caller is known."""
        caller = Caller(self._authority, await self._authority.principal(authorization), gone)
        if self._closed:
            raise ControllerClosed
        if name in _GROWING:
            self.controller.core.memory.check(len(asked))
        work = asyncio.create_task(self._settle(prepare(asked, caller)), name=f"{name} of a controller")
        self._work.add(work)
        work.add_done_callback(self._work.discard)
        return work

    async def _settle(self, work: Callable[[], Awaitable[T]]) -> T:
        try:
            return await work()
        finally:  # a refusal reveals state, too
            await self.settled()

    async def settled(self) -> None:
        """Returns when all changes are durable. Raises JournalFailed."""
        if self._settled is not None:
            await self._settled()

    async def interrupt(self) -> None:
        """Cancels the work of the calls in flight, which raise Interrupted."""
        while self._work:
            await asyncio.gather(*self._cancelled(), return_exceptions=True)

    def _cancelled(self) -> tuple[asyncio.Task[Any], ...]:
        """Cancels the work of the calls in flight and returns it."""
        for work in self._work:
            work.cancel()
        return tuple(self._work)

    async def aclose(self) -> None:
        """Starts no more calls, and cancels the work of calls in flight."""
        self._closed = True
        if cancelled := self._cancelled():
            await asyncio.wait(cancelled, timeout=_ENDING_S)
            self._cancelled()  # the rest waits for its changes to become durable
            await asyncio.gather(*cancelled, return_exceptions=True)


def _abandoned(work: asyncio.Task[Any]) -> None:
    """Retrieves the error of a work whose caller has gone, and logs an unexpected error."""
    error = None if work.cancelled() else work.exception()
    if error is not None and not isinstance(error, ControllerError | JournalFailed):
        log.error("unexpected error in %s, whose caller has gone: %.200r", work.get_name(), error)
