"""The synchronous classes: each holds an object of the asyncio client and runs its methods in the loop.

`segstore.client.sync` derives the classes by `synchronous` when it is imported; tools/make_sync.py writes their types.
Public methods, properties, and attributes that the class body annotates keep their names, parameters and docstrings,
but for `_RENAMED` and `_WORDS`. A future becomes a future for threads, an asynchronous iterator an iterator, and an
object of the asyncio client an object of its synchronous class.

Invariant: the object is used in the thread of the loop only.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from functools import wraps
from types import TracebackType, new_class
from typing import Any, Final, Generic, Self, TypeVar

from segstore.client.client import Client
from segstore.client.client import connect as _connect
from segstore.client.serializers import Deserialized
from segstore.client.stream import StateSynchronizer
from segstore.client.sync.loop import Lease

T_co = TypeVar("T_co", covariant=True)
E = TypeVar("E")

MADE_BY_USERS: Final = (StateSynchronizer, Deserialized)
"""Classes of which users create objects, from another object of the client: the constructor's first argument."""

LEFT_OUT: Final = {
    "Client.pool": "connections belong to the loop",
    "Client.locations": "for the pool's own users",
    "Client.segment_requests": "requests are made by functions that run in the loop",
    "Client.segment_writer": "its appends call functions in the loop",
    "Client.segment_reader": "a level that `SegmentRequests` belongs to",
    "EventWriter.large_events": "an object of the loop; nothing that scripts need",
    "TransactionWriter.forget": "called by transactions",
    "Transaction.leave": "called by their writer",
    "Transaction.writer": "the program has it",
    "RevisionedStream.attempts": "for synchronizers",
}
"""Methods, properties and attributes without a synchronous form, and why."""

_FACE: Final = __name__.rpartition(".")[0]
_RENAMED: Final = {"aclose": "close", "__anext__": "__next__", "__aiter__": "__iter__"}
_WORDS: Final = {
    "async with": "with",
    "async for": "for",
    "await ": "",
    "`aclose`": "`close`",
    "an asyncio client": "a client",
    "asyncio.Future[": "Future[",
    "AsyncGenerator[": "Iterator[",
    "AsyncIterator[": "Iterator[",
}
"""Replacements in docstrings and in the types of results."""
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

    result = lease.run(taken)
    if result is _END:
        raise StopIteration
    element: E = result
    return element


class Iteration(Proxy[AsyncIterator[E]], Iterator[E]):
    """Iterates over an asynchronous iterator."""

    def __next__(self) -> E:
        return step(self._inner, self._lease)


FORMS: Final[dict[type, Any]] = {}
"""The synchronous class of each asyncio class."""


def synchronous(cls: type) -> Any:
    """Returns the synchronous class of an asyncio class."""
    base = OpenedClient if cls is Client else EnteredProxy if hasattr(cls, "__aenter__") else Proxy
    variables = getattr(cls, "__parameters__", ())
    form: Any = new_class(cls.__name__, (base, Generic[variables]) if variables else (base,))  # type: ignore[index]
    form.__module__, form.__doc__ = _FACE, _class_docstring(cls)
    if cls in MADE_BY_USERS:
        form.__init__ = _constructor(cls)
    for owner in cls.__mro__:
        for name, value in (inspect.get_annotations(owner) | vars(owner)).items():
            own = _RENAMED.get(name, name)
            is_shown = name in _RENAMED or not name.startswith("_")
            if is_shown and f"{cls.__name__}.{name}" not in LEFT_OUT and not hasattr(form, own):
                setattr(form, own, _member(cls, name, value))
    return FORMS.setdefault(cls, form)


@wraps(_connect)
def connect(*args: Any, **kwargs: Any) -> Any:
    return _wrapped(_connect(*args, **kwargs), Lease())


connect.__module__ = _FACE


def _wrapped(result: Any, lease: Lease) -> Any:
    """Returns the synchronous form of a result; a value is its own."""
    if (form := FORMS.get(type(result))) is not None:
        return form(result, lease)
    return Iteration(result, lease) if isinstance(result, AsyncIterator) else result


def _member(cls: type, name: str, value: Any) -> Any:
    """Returns the synchronous form of a method, a property or an attribute, whose value is its type."""
    if isinstance(value, str):
        return _attribute(name, value)
    if isinstance(value, property):

        def read(self: Proxy[Any]) -> Any:
            return _wrapped(self._lease.call(getattr, self._inner, name), self._lease)

        return property(_dressed(read, cls, name, value.fget))
    if name == "__aiter__":
        return _dressed(lambda self: self, cls, name, value)
    if name == "__anext__":
        return _dressed(lambda self: step(self._inner, self._lease), cls, name, value)
    returns_future = value.__annotations__["return"].startswith("asyncio.Future[")
    run: Any = Lease.submit if returns_future else Lease.run if inspect.iscoroutinefunction(value) else Lease.call

    def method(self: Proxy[Any], *args: Any, **kwargs: Any) -> Any:
        return _wrapped(run(self._lease, getattr(self._inner, name), *args, **kwargs), self._lease)

    return _dressed(method, cls, name, value)


def _attribute(name: str, kind: str) -> property:
    """Returns the property for an attribute; one that never changes is read in the caller's thread."""
    is_final = kind.startswith("Final[")

    def read(self: Proxy[Any]) -> Any:
        return getattr(self._inner, name) if is_final else self._lease.call(getattr, self._inner, name)

    read.__annotations__ = {"return": kind[6:-1] if is_final else kind}
    return property(read)


def _dressed(method: Callable[..., Any], cls: type, name: str, function: Any) -> Any:
    """Gives a method the name, signature and docstring of its asyncio form."""
    own, returned = _RENAMED.get(name, name), function.__annotations__["return"]
    form: Any = wraps(function)(method)
    form.__name__, form.__qualname__, form.__module__ = own, f"{cls.__name__}.{own}", _FACE
    form.__doc__ = _reworded(function.__doc__)
    form.__annotations__ = {**function.__annotations__, "return": _reworded(returned)}
    if form.__annotations__["return"] != returned:
        form.__signature__ = inspect.signature(function).replace(return_annotation=form.__annotations__["return"])
    return form


def _constructor(cls: type) -> Any:
    signature = inspect.signature(vars(cls)["__init__"])
    this, first, *others = signature.parameters.values()

    def construct(self: Proxy[Any], *args: Any, **kwargs: Any) -> None:
        bound = signature.bind(self, *args, **kwargs)
        inner, lease = parts_of(bound.args[1])
        Proxy.__init__(self, cls(inner, *bound.args[2:], **bound.kwargs), lease)

    if first.annotation.startswith("Async"):  # any object of the client that iterates
        first = first.replace(annotation=f"Proxy[{first.annotation}]")
    form: Any = construct
    form.__name__, form.__qualname__, form.__module__ = "__init__", f"{cls.__name__}.__init__", _FACE
    form.__signature__ = signature.replace(parameters=[this, first, *others])
    return form


def _class_docstring(cls: type) -> str:
    """Returns the docstring of a class without the lines of attributes that are left out."""
    lines = (_reworded(cls.__doc__) or "").split("\n")
    return "\n".join(line for line in lines if f"{cls.__name__}.{line.strip().partition(':')[0]}" not in LEFT_OUT)


def _reworded(text: str | None) -> str | None:
    for asynchronous, word in _WORDS.items():
        text = text and text.replace(asynchronous, word)
    return text
