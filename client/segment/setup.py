"""Sets up a segment writer at the store that owns its segment, and retries until that succeeds or must not.

An attempt looks up the segment's store and token, opens a flow there, sends SetupAppend and waits until its owner
forwards the reply. After a failure it invalidates the location or token if that was the cause, waits for the back-off
and retries; after `retry`'s number of failures, or `recovery_timeout_ms`, without progress it gives up.

Invariants: at most one attempt runs at a time; each attempt has a deadline; an attempt ends in `answered`, in the
owner's `gave_up`, or in the next attempt. All attempts use the same flow number and request id; `aclose` releases a
pooled flow number and leaves no task. Follows `SegmentOutputStreamImpl` (Pravega's client), seeds 36.4, 36.9, 36.23 and
36.26.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol
from uuid import UUID

from segstore.client.attempts import Attempts
from segstore.client.connection import ConnectionPool, Endpoint, Flow, FlowHandler, Locations, learn
from segstore.client.errors import (
    ClientError,
    ProtocolViolation,
    RequestRejected,
    RequestTimedOut,
    Retriable,
    TokenExpired,
)
from segstore.wire import SetupAppend, WireError
from segstore.wire.request_id import pack

RECOVERABLE: Final = (Retriable, TokenExpired, ProtocolViolation)
"""Errors after which another attempt may succeed."""
_HELD_S: Final = 1.0
"""If an idle writer loses its set-up sooner than this, the set-up counts as a failed attempt."""


class SetUpOwner(FlowHandler, Protocol):
    """The writer being set up, which handles the flow's replies."""

    def began(self, flow: Flow) -> bool:
        """Called before SetupAppend is sent on this flow; returns False if the writer has ended meanwhile."""

    def failed_once(self) -> bool:
        """Called when an attempt failed and its flow is abandoned; returns False if the writer has ended meanwhile."""

    def gave_up(self, error: ClientError) -> None:
        """Called when no attempt follows. The error may be SegmentOver."""


class WriterSetup:
    """The set-up part of a segment writer.

    Attributes:
        request_id: the request id of all the writer's commands.
        endpoint: the store of the last attempt.
        failures: number of consecutive failed attempts since an event was stored.
    """

    def __init__(
        self, owner: SetUpOwner, pool: ConnectionPool, locations: Locations, segment: str, writer_id: UUID
    ) -> None:
        self._owner = owner
        self._pool = pool
        self._locations = locations
        self._segment = segment
        self._writer_id = writer_id
        self._flow_id = pool.lease()
        self.request_id: Final = pack(self._flow_id, 0)
        self.endpoint: Endpoint | None = None
        self._token = ""
        self.failures = 0
        self._settled = 0
        self._attempts: Attempts | None = None
        """The retry budget; set during attempts, and after a failure until there is progress."""
        self._idle_since_s: float | None = None
        self._answer: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self, error: ClientError | None, settled: int = 0) -> None:
        """Starts attempts; error: the failure that made this necessary, if any. settled: number of items settled."""
        loop = asyncio.get_running_loop()
        idle_since_s, self._idle_since_s = self._idle_since_s, None
        is_held = idle_since_s is not None and loop.time() - idle_since_s >= _HELD_S
        if is_held or settled > self._settled:
            self.failures = 0
        self._settled = settled
        if not self.failures:
            self._attempts = None
        self._task = loop.create_task(self._trying(error), name=f"setting up a writer of {self._segment}")

    def idle(self) -> None:
        """Called when the writer is set up and has nothing to store. Staying so for a while counts as progress."""
        self._idle_since_s = asyncio.get_running_loop().time()

    def answered(self, error: ClientError | None = None) -> None:
        """Ends the current attempt: its reply has arrived, or it is no longer needed. error: fails the attempt."""
        answer, self._answer = self._answer, None
        if answer is None or answer.done():
            return
        if error is None:
            answer.set_result(None)
        else:
            answer.set_exception(error)

    def timed_out(self, what: str) -> RequestTimedOut:
        """Returns the error for a store that did not do something in time."""
        limit = self._pool.settings.request_timeout_ms
        return RequestTimedOut(
            f"{self.endpoint} {what} {self._segment} within {limit:.0f} ms",
            endpoint=str(self.endpoint),
            segment=self._segment,
            request_id=self.request_id,
            limit=limit,
        )

    def release(self) -> None:
        """Releases the flow number; the owner has closed its flow."""
        self._pool.release(self._flow_id)

    def cancel(self) -> None:
        """Cancels the current attempt without waiting for it to end."""
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()

    async def aclose(self) -> None:
        """Cancels the current attempt and waits for it to end."""
        self.cancel()
        task, self._task = self._task, None
        if task is not None and task is not asyncio.current_task():
            await asyncio.gather(task, return_exceptions=True)

    # --- trying -----------------------------------------------------------------------------------------------------

    async def _trying(self, error: ClientError | None) -> None:
        owner = self._owner
        attempts = self._attempts
        if attempts is None:
            pool, what = self._pool, f"the writer of {self._segment}"
            attempts = self._attempts = Attempts(pool.settings, what, segment=self._segment, random=pool.random)
        try:
            while True:
                if error is not None:
                    await self._wait_after(error, attempts)
                try:
                    async with attempts.one():
                        await self._once()
                except RECOVERABLE as problem:
                    error = problem
                    if owner.failed_once():
                        continue
                break
        except ClientError as problem:
            owner.gave_up(problem)
        except WireError as problem:
            rejected = RequestRejected(f"{self._segment} cannot be written to: {problem}", segment=self._segment)
            owner.gave_up(rejected.caused_by(problem))
        except Exception as problem:  # noqa: BLE001 — any failure must reach the waiters
            text = f"setting up a writer of {self._segment} failed: {problem!r}"
            owner.gave_up(ProtocolViolation(text, segment=self._segment).caused_by(problem))
        if not attempts.failures:
            self._attempts = None
        if self._task is asyncio.current_task():
            self._task = None

    async def _wait_after(self, error: ClientError, attempts: Attempts) -> None:
        """Invalidates the location or token that proved wrong, and waits for the back-off. Raises RetriesExhausted."""
        learn(self._locations, self._segment, error, self.endpoint, self._token, in_doubt=self.failures > 0)
        pause_s = attempts.failed(error)
        self.failures = attempts.failures
        await asyncio.sleep(pause_s)

    async def _once(self) -> None:
        self.endpoint = endpoint = await self._locations.endpoint_of(self._segment)
        self._token = await self._locations.token_for(self._segment)
        owner, pool = self._owner, self._pool
        flow = await pool.flow(endpoint, owner, flow_id=self._flow_id)
        if not owner.began(flow):
            flow.close()
            return
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._answer = answer
        flow.send(SetupAppend(self.request_id, self._writer_id, self._segment, self._token))
        try:
            async with asyncio.timeout(pool.settings.request_timeout_ms / 1000):
                await answer
        except TimeoutError as cause:
            raise self.timed_out("did not set up the writer of") from cause
        finally:
            self._answer = None
