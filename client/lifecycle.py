"""Life cycle of the client's objects: `async with` support, and a bound on how long closing may take.

A class derives from `OpenedBefore` if it has an `open`, and from `ClosedAfter`, `FreedAfter` or `FlushedAfter` for its
end. `within` is a deadline that raises a client error; `all_of` runs several coroutines and leaves none behind;
`finish` waits for work that cancelling must not stop.

Invariant: the closing method is called exactly once, however the block ends. Classes that decide more on exit, such as
transactions, define their own `__aexit__`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NoReturn, Self, TypeVar

from segstore.client.errors import Closed, RequestTimedOut

T = TypeVar("T")


def check_loop(own: asyncio.AbstractEventLoop) -> None:
    """Raises RuntimeError in another event loop than a client's own, where its sockets would never wake the caller."""
    here = asyncio.get_running_loop()
    if here is not own:
        raise RuntimeError(
            f"the client belongs to the event loop {own!r}, and is used in another one, {here!r}: use it in the loop "
            "that opened it, or open a client in each loop"
        )


class _EnteredAsync:
    __slots__ = ()

    if not TYPE_CHECKING:  # type checkers refuse `with` as they do without these

        def __enter__(self) -> NoReturn:
            name = type(self).__name__
            raise TypeError(f"a {name} is entered by `async with`; segstore.client.sync is the client for `with`")

        def __exit__(self, *_: object) -> None: ...


class OpenedBefore(_EnteredAsync):
    """Calls `open` on entry. Must precede the other base classes."""

    __slots__ = ()

    async def __aenter__(self) -> Self:
        await self.open()  # type: ignore[attr-defined]  # of the derived class
        return self


class ClosedAfter(_EnteredAsync):
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
