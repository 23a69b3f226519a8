"""Executes the controller's calls, for gRPC and for REST: authentication, fair shares, durability, shutdown.

Invariants: a peer has a share of the calls that are executed at a time, and of the bytes of their requests; the others
wait. A call is answered only when all changes before it are durable. Started work is completed even if its caller
disconnects, as in Pravega.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeVar

from segstore.server.controller.api.auth import Authority
from segstore.server.controller.api.service import Caller, Served
from segstore.server.controller.controller import Controller
from segstore.server.controller.errors import ControllerClosed, ControllerError, Interrupted, RequestsTooLarge
from segstore.server.controller.pace import CALLER, units_of
from segstore.server.controller.shares import Shares
from segstore.server.durable import JournalFailed

log = logging.getLogger(__name__)

T = TypeVar("T")

_ENDING_S: Final = 1.0
"""How long interrupted calls may wait until their changes are durable."""
_CALL_UNITS: Final = 12
"""Cost for a server to accept a call, in units of the controller's pace."""
_WORKS_MAX: Final = 128
"""Maximum number of calls executed at a time; others wait."""
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
        self._works = Shares(_WORKS_MAX)
        self._held = Shares(_HELD_MAX_BYTES)
        self._closed = False

    async def execute(
        self,
        name: str,
        peer: str,
        asked: bytes,
        authorization: str | None,
        prepare: Callable[[bytes, Caller], Callable[[], Awaitable[T]]],
    ) -> T:
        """Executes a call and returns its result.

        name: the method. peer: whose share it uses. asked: the request. authorization: the credentials in it, if any.
        prepare: parses the request and returns the work. Raises ControllerError, JournalFailed, and what `prepare` and
        the work raise.
        """
        size, work = len(asked), None
        gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        CALLER.set(peer)
        self.controller.pace.charge(_CALL_UNITS)
        if not self._held.try_take(peer, size):
            raise RequestsTooLarge
        try:
            work = await self._begin(name, peer, asked, authorization, prepare, gone)
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
            self._held.give_back(peer, size)
            del work  # which has the error, whose traceback has this frame

    def charge(self, answer_bytes: int) -> None:
        """Counts the work of writing an answer."""
        self.controller.pace.charge(units_of(answer_bytes))

    async def _begin(
        self,
        name: str,
        peer: str,
        asked: bytes,
        authorization: str | None,
        prepare: Callable[[bytes, Caller], Callable[[], Awaitable[T]]],
        gone: asyncio.Future[None],
    ) -> asyncio.Task[T]:
        """Starts the work of a call once its peer's share allows it. A cancelled wait leaves nothing behind."""
        caller = Caller(self._authority, await self._authority.principal(authorization), gone)
        await self._works.take(peer)
        work: asyncio.Task[T] | None = None
        try:
            await self.controller.pace.take(units_of(len(asked)))
            if self._closed:
                raise ControllerClosed
            if name in _GROWING:
                self.controller.check_memory(len(asked))
            work = asyncio.create_task(self._settle(prepare(asked, caller)), name=f"{name} of a controller")
        finally:
            if work is None:
                self._works.give_back(peer)
        self._work.add(work)
        work.add_done_callback(self._work.discard)
        work.add_done_callback(lambda _: self._works.give_back(peer))
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
        while left := tuple(self._work):
            for each in left:
                each.cancel()
            await asyncio.gather(*left, return_exceptions=True)

    async def aclose(self) -> None:
        """Starts no more calls, and cancels the work of calls in flight."""
        self._closed = True
        if left := tuple(self._work):
            for each in left:
                each.cancel()
            _, pending = await asyncio.wait(left, timeout=_ENDING_S)
            for each in pending:  # they wait for their changes to become durable
                each.cancel()
            await asyncio.gather(*left, return_exceptions=True)
        await self._authority.aclose()


def _abandoned(work: asyncio.Task[Any]) -> None:
    """Retrieves the error of a work whose caller has gone, and logs an unexpected error."""
    error = None if work.cancelled() else work.exception()
    if error is not None and not isinstance(error, ControllerError | JournalFailed):
        log.error("unexpected error in %s, whose caller has gone: %.200r", work.get_name(), error)
