"""The bases of the synchronous classes: each holds an object of the asyncio client and runs its methods in the loop.

Invariant: the object is used in the thread of the loop only.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from types import TracebackType
from typing import Any, Final, Generic, Self, TypeVar

from segstore.client.client import Client
from segstore.client.sync.loop import Lease

T_co = TypeVar("T_co", covariant=True)
E = TypeVar("E")

_END: Final = object()


class Proxy(Generic[T_co]):
    """An object of the asyncio client, used from other threads."""

    def __init__(self, inner: T_co, lease: Lease) -> None:
        self._inner: Final = inner
        self._lease: Final = lease

    def __repr__(self) -> str:
        return f"<{type(self).__module__}.{type(self).__name__} of {self._inner!r}>"


class EnteredProxy(Proxy[T_co]):
    """An object that `with` opens and closes."""

    def __enter__(self) -> Self:
        inner: Any = self._inner
        self._lease.run(inner.__aenter__)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        inner: Any = self._inner
        self._lease.run(inner.__aexit__, kind, error, trace)


def parts_of(proxy: Proxy[T_co]) -> tuple[T_co, Lease]:
    """Returns the asyncio object and the lease of a proxy."""
    return proxy._inner, proxy._lease


class OpenedClient(Proxy[Client]):
    """The base of the synchronous client, which starts and ends the thread of the loop."""

    def open(self) -> None:
        """Starts the thread and prepares the client; connections are opened on first use.

        Raises OSError if the CA file cannot be read.
        """
        self._lease.start()
        try:
            self._lease.call(self._inner.open)
        except OSError:
            self._lease.release()
            raise

    def close(self) -> None:
        """Closes all connections and ends the thread; pending operations fail. Can be called twice."""
        if self._lease.is_running:
            try:
                self._lease.run(self._inner.aclose)
            finally:
                self._lease.release()

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def step(inner: AsyncIterator[E], lease: Lease) -> E:
    """Returns the next element of an asynchronous iterator. Raises StopIteration at its end."""

    async def taken() -> Any:
        return await anext(inner, _END)

    found = lease.run(taken)
    if found is _END:
        raise StopIteration
    element: E = found
    return element


class Iteration(Iterator[E]):
    """Iterates over an asynchronous iterator."""

    def __init__(self, inner: AsyncIterator[E], lease: Lease) -> None:
        self._inner = inner
        self._lease = lease

    def __next__(self) -> E:
        return step(self._inner, self._lease)
