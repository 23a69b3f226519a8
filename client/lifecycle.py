"""Life cycle of the client's objects: `async with` support and a bound on how long closing may take.

A class takes how it begins, `OpenedBefore` if it is opened, and one of the ways to end: `ClosedAfter`, `FreedAfter` or
`FlushedAfter`. `within` is a deadline whose end is an error of the client.

Invariant: whatever ends the block, the class's own end is called, once. Not for what has more to decide at its end, as
a transaction does: that has an `__aexit__` of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

from segstore.client.errors import RequestTimedOut


class _Opens(Protocol):
    async def open(self) -> None: ...


class _Closes(Protocol):
    async def aclose(self) -> None: ...


class _Frees(Protocol):
    def close(self) -> None: ...


class _Flushes(_Closes, Protocol):
    async def abort(self) -> None: ...


P = TypeVar("P", bound=_Opens)


class OpenedBefore:
    """Its `open` comes before the block. Comes before the others among the bases."""

    __slots__ = ()

    async def __aenter__(self: P) -> P:
        await self.open()
        return self


class _Entered:
    __slots__ = ()

    async def __aenter__(self) -> Self:
        return self


class ClosedAfter(_Entered):
    """Its `aclose` comes after the block."""

    __slots__ = ()

    async def __aexit__(
        self: _Closes, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


class FreedAfter(_Entered):
    """Its `close`, which does not wait, comes after the block."""

    __slots__ = ()

    async def __aexit__(
        self: _Frees, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class FlushedAfter(_Entered):
    """A writer: after the block comes its `aclose`, which flushes; after an error in the block only its `abort`."""

    __slots__ = ()

    async def __aexit__(
        self: _Flushes, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            await self.aclose()
        else:
            await self.abort()


@asynccontextmanager
async def within(limit_ms: float, otherwise: str | Callable[[], str], **facts: Any) -> AsyncIterator[None]:
    """What is inside gets so long; then it is cancelled, and RequestTimedOut says what did not happen.

    otherwise: its sentence but for the time, or what makes that when the time is over. facts: more of the error's.
    """
    try:
        async with asyncio.timeout(limit_ms / 1000):
            yield
    except TimeoutError as cause:
        said = otherwise if isinstance(otherwise, str) else otherwise()
        raise RequestTimedOut(f"{said} within {limit_ms:.0f} ms", limit=limit_ms, **facts) from cause
