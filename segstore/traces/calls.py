"""Makes the controller calls of a trace, and compares the answers with the trace's.

Ids that the controller chooses, such as transaction ids, are learnt from its answers and replaced in later requests.
Compared are status, details and fields, except ids and times, which are compared as by `Translation`, addresses and
delegation tokens. Metadata is neither sent nor compared.

A client that waits for a transaction or a scale polls its state. So an intermediate state is not compared, and if it is
the answer where the trace has a later state, the call is repeated.

Invariants: a call is made once, except such polls; calls that were in flight together in the trace are in flight
together; the wait for an answer is at most `timeout_s`; after `aclose` no call is left.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple

from segstore.server.controller.api import UpstreamController, unreached
from segstore.server.replay import LeftOut, read_calls
from segstore.wire.endpoint import Endpoint
from segstore.wire.trace import Call, FieldDifference, Translation, translated_call

if TYPE_CHECKING:
    from collections.abc import Sequence

    from segstore.server.replay import CallStep
    from segstore.traces.access import Access
    from segstore.wire.trace import Record

_PASSED_THROUGH: Final = frozenset({"IN_PROGRESS", "COMMITTING", "ABORTING"})
_POLL_S: Final = 0.05
_MOST_OPEN: Final = 1_000
"""Maximum number of calls in flight; the oldest is then given up."""
_NO_IDS: Final[dict[str, str]] = {}


class Answered(NamedTuple):
    """The answer to a call. expected: the trace's. actual: the controller's; None if none came, and why."""

    request: Call
    expected: Call
    actual: Call | None
    fields: tuple[FieldDifference, ...]
    why: str = ""


class TracedCalls:
    """The calls of a trace, made to another controller.

    records: of the trace. controller: its address. store: the address of the store to which requests go.
    translation: the ids of both runs, and the fields that are compared. access: TLS and credentials of the calls; it
    learns the tokens in their answers.
    left_out: records that are no calls, or that cannot be made.
    """

    def __init__(
        self,
        records: Sequence[Record],
        controller: Endpoint,
        store: Endpoint,
        translation: Translation,
        access: Access,
        timeout_s: float,
    ) -> None:
        self.left_out: list[LeftOut] = []
        steps = read_calls(records, self.left_out)
        self._made = {step.made: step for step in steps}
        self._answered = {step.answered: step for step in steps if step.answer is not None}
        self._controller = UpstreamController(controller, access.trust)
        self._access = access
        self._addresses = store, controller
        self._translation = translation
        self._timeout_s = timeout_s
        self._open: dict[int, asyncio.Task[Call]] = {}

    async def make(self, place: int) -> Call | None:
        """Makes the call whose request is at a place in the trace, from 1; returns it, None if it was left out."""
        step = self._made.get(place)
        if step is None:
            return None
        request = step.request
        message = translated_call(request, self._translation.ids.right, *self._addresses)
        request = request._replace(message=message, metadata={}, peer="")
        if len(self._open) >= _MOST_OPEN:
            await _ended(self._open.pop(next(iter(self._open))))
        asking = self._controller.ask(request, self._access.metadata)
        self._open[step.number] = asyncio.create_task(asking, name=f"segstore replay calls {request.rpc}")
        await asyncio.sleep(0)  # it starts before the next request
        return request

    async def answer(self, place: int) -> Answered | None:
        """Waits for the answer at a place in the trace; None if it was left out, or if the client had given up.

        Raises ConnectionError if the controller cannot be reached.
        """
        step = self._answered.get(place)
        if step is None or step.answer is None:
            return None
        asking = self._open.pop(step.number, None)
        if asking is None:
            why = f"it was given up, because more than {_MOST_OPEN} calls were in flight"
            return Answered(step.request, step.answer, None, (), why)
        if not step.is_answered:
            await _ended(asking)
            return None
        actual = await self._actual(step, step.answer, asking)
        if actual is None:
            return Answered(step.request, step.answer, None, (), f"none came within {self._timeout_s:g} s")
        if (why := unreached(actual)) and not unreached(step.answer):
            raise ConnectionError(f"no connection to the controller at {self._controller.address}: {why}")
        self._access.learn(step.request, actual)
        return Answered(step.request, step.answer, actual, self._fields(step.answer, actual))

    async def _actual(self, step: CallStep, expected: Call, asking: asyncio.Task[Call]) -> Call | None:
        """Returns the answer, after polls the last answer; None if no answer came in time."""
        actual = None
        try:
            async with asyncio.timeout(self._timeout_s):
                actual = await asking
                while actual.outcome in _PASSED_THROUGH and expected.outcome not in _PASSED_THROUGH:
                    await asyncio.sleep(_POLL_S)
                    await self.make(step.made)
                    actual = await self._open.pop(step.number)
        except TimeoutError:
            return actual
        return actual

    def _fields(self, expected: Call, actual: Call) -> tuple[FieldDifference, ...]:
        """Returns the fields that differ; ids in the other fields are paired."""
        if expected.outcome in _PASSED_THROUGH and actual.status == "OK":
            return ()
        left, right = (
            each._replace(message=translated_call(each, _NO_IDS, *self._addresses)) for each in (expected, actual)
        )
        return self._translation.call_fields(left, right)

    async def aclose(self) -> None:
        """Gives up calls in flight, and closes the connection."""
        asking, self._open = list(self._open.values()), {}
        for each in asking:
            await _ended(each)
        await self._controller.aclose()


async def _ended(task: asyncio.Task[Call]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
