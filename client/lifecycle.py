"""Life cycle of the client's objects: `async with` support, their event loop, and a bound on how long closing may take.

A class derives from `OpenedBefore` if it has an `open`, and from `ClosedAfter`, `FreedAfter` or `FlushedAfter` for its
end. All of these are `OfOneLoop`. `within` is a deadline that raises a client error; `all_of` runs several coroutines
and leaves none behind; `finish` waits for work that cancelling must not stop.

Invariant: the closing method is called exactly once, however the block ends. Classes that decide more on exit, such as
transactions, define their own `__aexit__`.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any, Final, NoReturn, ParamSpec, Self, TypeVar

from segstore.client.errors import Closed, RequestTimedOut

T = TypeVar("T")
A = ParamSpec("A")
F = TypeVar("F", bound=Callable[..., Any])

_FREQUENT: Final = "segstore_frequent"


def frequent(method: F) -> F:
    """Marks a method that is awaited for each event, and so calls `_check_loop` only before it waits."""
    setattr(method, _FREQUENT, True)
    return method


class OfOneLoop:
    """An object that is used in one event loop: the event loop of its first use, unless it has set `_loop` before.

    In another loop, its public coroutine methods raise RuntimeError: its sockets, tasks and futures would never wake
    the caller.
    """

    __slots__ = ()

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for name, method in tuple(vars(cls).items()):
            public = not name.startswith("_") or name in ("__aenter__", "__aexit__")
            if public and inspect.iscoroutinefunction(method) and not hasattr(method, _FREQUENT):
                setattr(cls, name, _in_its_loop(method))

    def _check_loop(self) -> None:
        """Raises RuntimeError in another event loop than the object's."""
        here = asyncio.get_running_loop()
        own = getattr(self, "_loop", None)
        if own is None:
            self._loop = own = here  # type: ignore[misc]  # objects without a loop of their own have no slots
        if own is not here:
            raise RuntimeError(
                f"{type(self).__name__}: the client belongs to the event loop {own!r}, and is used in another one, "
                f"{here!r}: use it in the loop that opened it, or open a client in each loop"
            )

    if not TYPE_CHECKING:  # type checkers refuse `with` as they do without these

        def __enter__(self) -> NoReturn:
            name = type(self).__name__
            raise TypeError(f"a {name} is entered by `async with`; segstore.client.sync is the client for `with`")

        def __exit__(self, *_: object) -> None: ...


def _in_its_loop(method: Callable[A, Awaitable[T]]) -> Callable[A, Coroutine[Any, Any, T]]:
    @wraps(method)
    async def checked(*args: A.args, **kwargs: A.kwargs) -> T:
        args[0]._check_loop()  # type: ignore[attr-defined]  # of a method, this is the object
        return await method(*args, **kwargs)

    return checked


class OpenedBefore(OfOneLoop):
    """Calls `open` on entry. Must precede the other base classes."""

    __slots__ = ()

    async def __aenter__(self) -> Self:
        await self.open()  # type: ignore[attr-defined]  # of the derived class
        return self


class ClosedAfter(OfOneLoop):
    """Calls `aclose` on exit."""

    __slots__ = ()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()  # type: ignore[attr-defined]


class FreedAfter(ClosedAfter):
    """Calls the synchronous `close` on exit."""

    __slots__ = ()

    async def __aexit__(self, *_: object) -> None:
        self.close()  # type: ignore[attr-defined]


class FlushedAfter(ClosedAfter):
    """For writers: calls `aclose`, which flushes, on exit, or `abort` if the block raised."""

    __slots__ = ()

    async def __aexit__(self, *raised: object) -> None:
        await (self.aclose() if raised[0] is None else self.abort())  # type: ignore[attr-defined]


def not_open(what: str, *, closed: bool, **facts: Any) -> Closed:
    """Returns the error for an object that was closed, or not opened yet. facts: the error's facts."""
    return Closed(f"{what} {'was closed' if closed else 'is not open: `open` or a `with` block opens it'}", **facts)


@asynccontextmanager
async def within(limit_ms: float, otherwise: str | Callable[[], str], **facts: Any) -> AsyncIterator[None]:
    """Cancels the block after `limit_ms` and raises RequestTimedOut.

    otherwise: the error's message without the time, or a function that makes it on expiry. facts: the error's facts.
    """
    try:
        async with asyncio.timeout(limit_ms / 1000):
            yield
    except TimeoutError as cause:
        text = otherwise if isinstance(otherwise, str) else otherwise()
        raise RequestTimedOut(f"{text} within {limit_ms:.0f} ms", limit=limit_ms, **facts) from cause


async def all_of(coroutines: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Runs coroutines concurrently and returns their results; the first error, even of the iterable, cancels the other
    coroutines and is raised once they have ended.
    """
    tasks: list[asyncio.Task[T]] = []
    try:
        for coroutine in coroutines:
            tasks.append(asyncio.ensure_future(coroutine))  # noqa: PERF401 — those made before an error are cancelled
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def finish(work: Coroutine[Any, Any, T], name: str) -> T:
    """Runs work to its end and returns its result; cancellation of the caller is raised afterwards.

    anyio's cancel scopes cancel every wait in them. The work must end by itself, within a deadline. name: of its task.
    """
    task = asyncio.get_running_loop().create_task(work, name=name)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled from (None if task.cancelled() else task.exception())
    return task.result()
