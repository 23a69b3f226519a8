"""Functions as fault actions: their argument, their execution, and their errors.

    @mock.fault("type = APPEND_BLOCK_END", nth=3)
    async def third_append(request):
        await moved.wait()
        request.answer("WrongHost")

A function runs on the thread and loop of the server, between two steps of it, so it must not block. While a coroutine
runs, its request and the later requests of the connection are held, as by the action `hold`. If that hold is released,
the coroutine is cancelled, and the request continues at once with the decisions made so far.

Invariants: a function decides with ordinary actions, which `segstore.server.faults.lane` applies; a function that fails
closes the request's connection, before the request is executed, and its error is logged, kept in `errors` and raised
when the server stops; when a connection is lost, its coroutines are cancelled; after `aclose` no coroutine remains.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec
from pydantic import BaseModel, ValidationError

from segstore.server.faults.rules import Action, Close, Drop, Error
from segstore.wire import Command
from segstore.wire.blocks import Append
from segstore.wire.printable import SHOWN, printable
from segstore.wire.protocol import frames_of
from segstore.wire.validation import first_error, message_of

if TYPE_CHECKING:
    from segstore.server.faults.faults import Waiting
    from segstore.server.faults.observe import Seen

log = logging.getLogger(__name__)

_NOT_RETURNED: Final = (str, Mapping, Command, BaseModel, Generator, AsyncGenerator)


class FaultFunctionError(RuntimeError):
    """A function of a fault rule has failed; the cause is its error. Attributes: rule, seen (the request)."""

    def __init__(self, rule: str, seen: Seen, cause: BaseException) -> None:
        what = f"{type(cause).__name__}: {cause}" if str(cause) else type(cause).__name__
        super().__init__(
            printable(f"the function of fault {rule!r} failed at request {seen.number}, {seen.type_name}: {what}", 600)
        )
        self.rule = rule
        self.seen = seen
        self.__cause__ = cause


class FaultRequest:
    """A request passed to a rule's function, which decides its fate; by default it is executed.

    The last decision counts. Call the methods on the server's thread; `release` on any thread.

    Attributes:
        rule: the rule's name.
        seen: facts about the request, as in `requests()`.
        command: the request: a command, or an `Append`; its payloads are `bytes`. It changes with `change`.
        decided: the action that replaces the execution; None if the request is executed.
        is_held: whether the request waits for `release`.
    """

    def __init__(self, rule: str, seen: Seen, command: Command | Append) -> None:
        self.rule = rule
        self.seen = seen
        self.command = command
        self.decided: Action | None = None
        self.is_held = False
        self._changed = False
        self._is_running = False
        self._waiting: Waiting | None = None
        self._loop = asyncio.get_running_loop()

    def proceed(self) -> None:
        """The request is executed; this is the default."""
        self.decided = None

    def answer(self, reply: Command | str, **fields: Any) -> None:
        """Answers the request instead of executing it.

        reply: a command, or the name of a command, whose fields are taken from the request unless given, as in the
        action `error`. Raises ValueError for values that are not replies.
        """
        if isinstance(reply, str):
            name = reply
        elif not isinstance(reply, Command):
            raise ValueError(f"an answer is a command, or the name of one such as 'WrongHost', not {_shown(reply)}")
        else:
            name, fields = reply.type_name, {**reply.to_dict(), **fields}
        try:
            self.decided = Error(error=name, fields=fields)
        except ValidationError as error:
            raise ValueError(message_of(first_error(error))) from error

    def change(self, **fields: Any) -> None:
        """Changes fields of the request before it is executed.

        Raises TypeError for an unknown field, WireError for a value that cannot be sent, and ValueError for the segment
        of an append, which its writer determines, for data that is not bytes, and for an event count that is not an
        integer.
        """
        if isinstance(self.command, Append):
            if "segment" in fields:
                raise ValueError("the segment of an append is that of its writer, and cannot be changed")
            if not isinstance(fields.get("data", b""), bytes | bytearray | memoryview):
                raise ValueError(f"the data of an append are bytes, not {_shown(fields['data'])}")
            if "data" in fields:
                fields["data"] = bytes(fields["data"])
            if not isinstance(fields.get("event_count", 0), int):  # a conditional append does not send it
                raise ValueError(f"the event count of an append is a whole number, not {_shown(fields['event_count'])}")
        changed = msgspec.structs.replace(self.command, **fields)
        frames_of(changed)
        self.command, self._changed = changed, True

    def drop(self) -> None:
        """The request is neither executed nor answered."""
        self.decided = Drop(drop="request")

    def close(self, *, reset: bool = False) -> None:
        """The connection is closed, or reset, before the request is executed."""
        self.decided = Close(close="before", reset=reset)

    def hold(self) -> None:
        """Holds the request, once the function has returned, until `release`, or `faults.release` of the rule."""
        self.is_held = True

    def release(self) -> None:
        """Ends `hold`. May be called on any thread, also before the function has returned."""
        self._loop.call_soon_threadsafe(self._release)

    def _release(self) -> None:
        self.is_held = False
        if self._waiting is not None and not self._is_running:
            self._waiting.release()

    # --- for the lane -----------------------------------------------------------------------------------------------

    def waits(self, waiting: Waiting | None, task: asyncio.Task[None] | None) -> None:
        """The request is held: until the function, if it still runs in `task`, returns, and then until `release`."""
        self._waiting = waiting
        if task is not None:
            self._is_running = True
            task.add_done_callback(self._returned)

    def _returned(self, _: object) -> None:
        self._is_running = False
        if not self.is_held:
            self._release()

    def frames(self, raw: bytes) -> bytes:
        """The request as it is forwarded. raw: as it came, maybe empty."""
        return frames_of(self.command) if raw and self._changed else raw

    def failed(self) -> None:
        """The function has failed."""
        self.close()
        self.is_held = False


Function = Callable[[FaultRequest], Awaitable[object] | None]


class Functions:
    """The running functions of a server's rules. errors: of failed functions, oldest first."""

    def __init__(self) -> None:
        self.errors: list[FaultFunctionError] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._reported = 0

    def start(self, function: Function, request: FaultRequest) -> asyncio.Task[None] | None:
        """Calls a function; returns its task if it is a coroutine, None if it has returned."""
        try:
            outcome = function(request)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # noqa: BLE001 — a test's own, such as that of pytest.fail
            self._failed(request, error)
            return None
        if not inspect.isawaitable(outcome):
            self._check_returned(outcome, request)
            return None
        task = asyncio.get_running_loop().create_task(self._run(outcome, request), name=f"segstore {request.rule}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if inspect.iscoroutine(outcome):
            task.add_done_callback(lambda _: outcome.close())  # it was never started if the task was cancelled before
        return task

    async def _run(self, waiting: Awaitable[object], request: FaultRequest) -> None:
        try:
            self._check_returned(await waiting, request)
        except (KeyboardInterrupt, SystemExit, asyncio.CancelledError):
            request.failed()
            raise
        except BaseException as error:  # noqa: BLE001 — as above
            self._failed(request, error)

    def _check_returned(self, returned: object, request: FaultRequest) -> None:
        """Fails a function that returns an action, or is a generator: what it returns is ignored."""
        values = returned if isinstance(returned, list | tuple) else (returned,)
        if any(isinstance(value, _NOT_RETURNED) and value for value in values):
            text = f"it returned {_shown(returned)}, which decides nothing: call methods of the request, such as drop()"
            self._failed(request, ValueError(text))

    def _failed(self, request: FaultRequest, cause: BaseException) -> None:
        request.failed()
        error = FaultFunctionError(request.rule, request.seen, cause)
        self.errors.append(error)
        log.error("%s", error, exc_info=cause)

    async def aclose(self) -> None:
        """Cancels the functions that run. Raises the first error, unless an earlier call has: FaultFunctionError."""
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        reported, self._reported = self._reported, len(self.errors)
        if reported < len(self.errors):
            raise self.errors[reported]


def _shown(value: object) -> str:
    return printable(repr(value), SHOWN)
