"""Makes the controller calls of a trace, and compares the answers with the trace's; access to stores and controllers.

Ids that the controller chooses, such as transaction ids, are learnt from its answers and replaced in later requests.
Compared are status, details and fields, except ids and times, which are compared as by `Translation`, addresses and
delegation tokens. Metadata is neither sent nor compared.

Recordings contain no delegation tokens by default, and recorded tokens have expired. So where a controller gives tokens
in its answers, the requests for the same stream carry these tokens; without a controller, all requests carry one given
token.

A client that waits for a transaction or a scale polls its state. So an intermediate state is not compared, and if it is
the answer where the trace has a later state, the call is repeated.

Invariants: a call is made once, except such polls; calls that were in flight together in the trace are in flight
together; the wait for an answer is at most `timeout_s`; after `aclose` no call is left.
"""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from msgspec.structs import replace

from segstore.server.controller.api import UpstreamController, unreached
from segstore.server.controller.state import TABLE_SUFFIX
from segstore.server.net import trusting
from segstore.server.replay import LeftOut, read_calls
from segstore.wire.endpoint import Endpoint
from segstore.wire.trace import Call, FieldDifference, Translation, segments_of, translated_call

if TYPE_CHECKING:
    from collections.abc import Sequence

    from segstore.server.replay import CallStep
    from segstore.wire.trace import Record

_PASSED_THROUGH: Final = frozenset({"IN_PROGRESS", "COMMITTING", "ABORTING"})
_POLL_S: Final = 0.05
_MOST_OPEN: Final = 1_000
"""Maximum number of calls in flight; the oldest is then given up."""
_NO_IDS: Final[dict[str, str]] = {}
_TOKEN: Final = "delegation_token"


@dataclass
class Access:
    """The TLS settings and credentials of a replay.

    tls: for connecting to the store; None without TLS. trust: the authorities that the controller's certificate may be
    of (PEM), b"" for gRPC's own; None without TLS. authorization: metadata of controller calls, or "". token: the
    delegation token of all requests; None for the controller's tokens, or else the trace's.
    """

    tls: ssl.SSLContext | None = None
    trust: bytes | None = None
    authorization: str = field(default="", repr=False)
    token: str | None = field(default=None, repr=False)
    _given: dict[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def over_tls(cls, ca: Path | None, **more: Any) -> Self:
        """With TLS. ca: file of trusted authorities (PEM); None for the system's. Raises OSError."""
        return cls(*trusting(ca), **more)

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """The metadata of a controller call."""
        return (("authorization", self.authorization),) if self.authorization else ()

    def warn(self, controller: Endpoint) -> None:
        """Logs a warning if credentials are sent to a controller elsewhere without TLS, as the client does."""
        if self.authorization and self.tls is None:
            from segstore.client.connection import warn_if_unencrypted  # loads the client

            warn_if_unencrypted([controller])

    def learn(self, request: Call, answer: Call) -> None:
        """Keeps the token in an answer for the streams, or the table, that its request names."""
        token = getattr(answer.content, "delegationToken", "") if answer.status == "OK" else ""
        if token:
            table = getattr(request.content, "kvtName", "")
            named = ((scope, stream or (table and table + TABLE_SUFFIX)) for scope, stream in request.streams)
            self._given.update({"/".join(filter(None, parts)): token for parts in named})

    def fields(self, command: Any) -> dict[str, str]:
        """The fields of a request to replace: its token, if there is another one for it."""
        token = self.token
        if token is None and self._given and hasattr(command, _TOKEN):
            name = "/".join(next(iter(segments_of(command)), "").split("/")[:2])
            token = self._given.get(name) or self._given.get(name.removesuffix(TABLE_SUFFIX))
        return {} if token is None or not hasattr(command, _TOKEN) else {_TOKEN: token}


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
        request = replace(request, message=message, metadata={}, peer="")
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
            replace(call, message=translated_call(call, _NO_IDS, *self._addresses)) for call in (expected, actual)
        )
        return self._translation.call_fields(left, right)

    async def aclose(self) -> None:
        """Gives up calls in flight, and closes the connection."""
        asking, self._open = list(self._open.values()), {}
        for task in asking:
            await _ended(task)
        await self._controller.aclose()


async def _ended(task: asyncio.Task[Call]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
