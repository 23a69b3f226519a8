"""Life cycle of the client's objects: `async with` support and a bound on how long closing may take.

A class derives from `OpenedBefore` if it has an `open`, and from one of `ClosedAfter`, `FreedAfter` and `FlushedAfter`
for its end. `within` is a deadline that raises a client error; `all_of` runs several coroutines and leaves none behind;
`finish` waits for work that cancelling must not stop.

Invariant: the closing method is called exactly once, however the block ends. Classes that decide more on exit, such as
transactions, define their own `__aexit__`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from typing import Any, Protocol, Self, TypeVar

from segstore.client.errors import Closed, RequestTimedOut


class _Opens(Protocol):
    async def open(self) -> None: ...


class _Closes(Protocol):
    async def aclose(self) -> None: ...


class _Frees(Protocol):
    def close(self) -> None: ...


class _Flushes(_Closes, Protocol):
    async def abort(self) -> None: ...


P = TypeVar("P", bound=_Opens)
T = TypeVar("T")


class OpenedBefore:
    """Calls `open` on entry. Must precede the other base classes."""

    __slots__ = ()

    async def __aenter__(self: P) -> P:
        await self.open()
        return self


class _Entered:
    __slots__ = ()

    async def __aenter__(self) -> Self:
        return self


class ClosedAfter(_Entered):
    """Calls `aclose` on exit."""

    __slots__ = ()

    async def __aexit__(self: _Closes, *_: object) -> None:
        await self.aclose()


class FreedAfter(_Entered):
    """Calls the synchronous `close` on exit."""

    __slots__ = ()

    async def __aexit__(self: _Frees, *_: object) -> None:
        self.close()


class FlushedAfter(_Entered):
    """For writers: calls `aclose`, which flushes, on exit, or `abort` if the block raised."""

    __slots__ = ()

    async def __aexit__(self: _Flushes, kind: object, *_: object) -> None:
        if kind is None:
            await self.aclose()
        else:
            await self.abort()


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
        said = otherwise if isinstance(otherwise, str) else otherwise()
        raise RequestTimedOut(f"{said} within {limit_ms:.0f} ms", limit=limit_ms, **facts) from cause


async def all_of(coroutines: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Runs coroutines concurrently and returns their results; the first error, also one of the iterable, cancels the
    others and is raised once they have ended.
    """
    tasks: list[asyncio.Task[T]] = []
    try:
        for each in coroutines:
            tasks.append(asyncio.ensure_future(each))  # noqa: PERF401 — those made before an error are cancelled
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def finish(work: Coroutine[Any, Any, T], name: str) -> T:
    """Runs work to its end and returns its result, however often the caller is cancelled, which is raised afterwards.

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
