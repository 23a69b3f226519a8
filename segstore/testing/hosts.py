"""Hosts for objects on another event loop: in a thread of this process, or in a process of their own.

    with ThreadHost() as host:
        key = host.create(make_something, size=3)        # an async function: make_something(host, size=3)
        host.run(do_something, key, "with this")          # do_something(thing, "with this"), which may be async

A host in another process has the same interface: functions are sent by name, arguments and results are copied. It is
for clients that hold the interpreter lock while they wait: a server in the same process could never answer them.

Invariants: each call ends by a deadline; functions run one at a time between two steps of the loop; a stopped host has
stopped its objects, the newest first, and leaves no thread, process or pipe; a host whose parent is gone exits.
"""

from __future__ import annotations

import abc
import asyncio
import concurrent.futures
import contextlib
import inspect
import itertools
import os
import pickle
import signal
import struct
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Coroutine
from functools import partial
from typing import IO, Any, Final, Protocol, Self

PATIENCE_S: Final = 30.0
"""A host that takes longer is considered hung."""

__tracebackhide__ = True  # pytest shows the caller's line and the failure, not the frames between

_LENGTH: Final = struct.Struct("!Q")
_CHILD: Final = (
    "import sys; sys.path[:] = sys.argv[1:]; from segstore.testing.hosts import serve_parent; serve_parent()"
)


class InAnotherProcess(TypeError):
    """A call needs an object of another process, or cannot be sent there. The text suggests what to do."""


class Stoppable(Protocol):
    """An object that a host can hold."""

    async def stop(self) -> Any:
        """Stops the object. May be called twice."""


class Host(abc.ABC):
    """The base class of both kinds of host."""

    in_process: bool

    def create(self, make: Callable[..., Coroutine[Any, Any, Stoppable]], **given: Any) -> int:
        """Creates an object there and returns its key. Raises what `make` raises."""
        key: int = self._wait(self._begin(None, make, (), given), PATIENCE_S)
        return key

    def submit(self, function: Callable[..., Any], key: int, *given: Any) -> concurrent.futures.Future[Any]:
        """Calls a function there with an object and arguments; a returned coroutine is awaited."""
        return self._begin(key, function, given, {})

    def run(self, function: Callable[..., Any], key: int, *given: Any, timeout_s: float | None = PATIENCE_S) -> Any:
        """As `submit`, and returns the result. Raises the function's errors, and TimeoutError."""
        return self._wait(self.submit(function, key, *given), timeout_s)

    def _wait(self, done: concurrent.futures.Future[Any], timeout_s: float | None) -> Any:
        try:
            error = done.exception(timeout_s)
        except TimeoutError:
            done.cancel()
            where = "thread" if self.in_process else "process"
            raise TimeoutError(f"the servers' {where} did not answer within {timeout_s:g} s") from None
        except BaseException:
            done.cancel()
            raise
        if error is None:
            return done.result()
        try:
            raise error  # here, where its frames are hidden, and not within the future
        finally:
            del error  # which holds this frame

    @abc.abstractmethod
    def _begin(
        self, key: int | None, function: Callable[..., Any], given: tuple[Any, ...], named: dict[str, Any]
    ) -> concurrent.futures.Future[Any]:
        """Calls the function there; its first argument is the object of `key`, unless that is None."""

    @abc.abstractmethod
    def forget(self, key: int) -> None:
        """Drops an object, which must be stopped. May interrupt any other call."""

    @abc.abstractmethod
    def start(self) -> None:
        """Starts the host; returns when it accepts calls."""

    @abc.abstractmethod
    def stop(self) -> None:
        """Stops the objects, then the host. May be called twice."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class ThreadHost(Host):
    """A thread with an event loop.

    at_end: by name, functions to await when all objects have stopped.
    """

    in_process = True

    def __init__(self) -> None:
        self.at_end: dict[str, Callable[[], Awaitable[None]]] = {}
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._objects: dict[int, Stoppable] = {}
        self._keys = itertools.count(1)

    def start(self) -> None:
        ready: concurrent.futures.Future[asyncio.AbstractEventLoop] = concurrent.futures.Future()
        self._thread = threading.Thread(target=self._main, args=(ready,), name="segstore servers", daemon=True)
        self._thread.start()
        self._loop = ready.result(PATIENCE_S)

    @staticmethod
    def _main(ready: concurrent.futures.Future[asyncio.AbstractEventLoop]) -> None:
        with asyncio.Runner() as runner:
            loop = runner.get_loop()
            loop.call_soon(ready.set_result, loop)
            loop.run_forever()

    def _begin(
        self, key: int | None, function: Callable[..., Any], given: tuple[Any, ...], named: dict[str, Any]
    ) -> concurrent.futures.Future[Any]:
        return self._soon(partial(self._do, key, function, given, named))

    def _soon(self, function: Callable[[], Coroutine[Any, Any, Any]]) -> concurrent.futures.Future[Any]:
        if self._loop is None:
            raise RuntimeError("the servers' thread is not started, or was stopped")
        if threading.current_thread() is self._thread:
            raise RuntimeError("this is the servers' own thread, which cannot wait for itself")
        return asyncio.run_coroutine_threadsafe(function(), self._loop)

    async def _do(self, key: int | None, function: Callable[..., Any], given: Any, named: Any) -> Any:
        if key is None:
            made = await function(self, *given, **named)
            key = next(self._keys)
            self._objects[key] = made
            return key
        done = function(self._objects[key], *given, **named)
        return await done if inspect.isawaitable(done) else done

    def forget(self, key: int) -> None:
        self._objects.pop(key, None)

    def stop(self) -> None:
        if self._loop is None or self._thread is None:
            return
        try:
            self._wait(self._soon(self._end), PATIENCE_S)
        finally:
            loop, self._loop = self._loop, None
            loop.call_soon_threadsafe(loop.stop)
            self._thread.join(PATIENCE_S)

    async def _end(self) -> None:
        try:
            while self._objects:
                _, last = self._objects.popitem()
                await last.stop()
                del last
        finally:
            for last_thing in self.at_end.values():
                await last_thing()


class ProcessHost(Host):
    """A process with a `ThreadHost`; its interpreter and its import path are this process's.

    shared: file descriptors of this process that are open there, too, under the same numbers.
    """

    in_process = False

    def __init__(self, shared: Collection[int] = ()) -> None:
        self._shared = shared
        self._process: subprocess.Popen[bytes] | None = None
        self._reader: threading.Thread | None = None
        self._pending: dict[int, concurrent.futures.Future[Any]] = {}
        self._forgotten: deque[int] = deque()
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()

    def start(self) -> None:
        command = [sys.executable, "-c", _CHILD, *sys.path]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=self._shared)
        answers = self._process.stdout
        self._reader = threading.Thread(
            target=self._read, args=(answers,), name="segstore servers' answers", daemon=True
        )
        self._reader.start()

    def _begin(
        self, key: int | None, function: Callable[..., Any], given: tuple[Any, ...], named: dict[str, Any]
    ) -> concurrent.futures.Future[Any]:
        try:
            asked = pickle.dumps((key, function, given, named))
        except (pickle.PicklingError, AttributeError, TypeError) as cause:
            raise InAnotherProcess(
                f"the servers have a process of their own, where this cannot be sent: {cause}; "
                "give a function of a module, or have the servers in this process: process=False"
            ) from cause
        done: concurrent.futures.Future[Any] = concurrent.futures.Future()
        with self._lock:
            if self._process is None or self._process.stdin is None:
                raise RuntimeError("the servers' process is not started, or was stopped")
            number = next(self._numbers)
            self._pending[number] = done
            forgotten = [self._forgotten.popleft() for _ in range(len(self._forgotten))]
            try:
                _send(self._process.stdin, (number, forgotten, asked))
            except OSError as cause:
                del self._pending[number]
                raise RuntimeError(f"the servers' process has ended with status {self._process.poll()}") from cause
        return done

    def _read(self, answers: IO[bytes]) -> None:
        while (answer := _receive(answers)) is not None:
            number, failed, result = answer
            done = self._pending.pop(number)
            if not done.set_running_or_notify_cancel():
                continue
            if failed:
                done.set_exception(_error(result))
            else:
                done.set_result(result)
        while self._pending:
            _, done = self._pending.popitem()
            if done.set_running_or_notify_cancel():
                done.set_exception(RuntimeError("the servers' process has ended"))

    def forget(self, key: int) -> None:
        # Called by the garbage collector, which may interrupt anything here: nothing is sent now.
        self._forgotten.append(key)

    def stop(self) -> None:
        with self._lock:
            process, self._process = self._process, None
        if process is None or process.stdin is None or process.stdout is None or self._reader is None:
            return
        with contextlib.suppress(BrokenPipeError):  # a request that the process did not read
            process.stdin.close()
        try:
            process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        self._reader.join(PATIENCE_S)
        process.stdout.close()


def _asked(data: bytes) -> Any:
    try:
        return pickle.loads(data)
    except (ImportError, AttributeError) as cause:
        raise InAnotherProcess(
            f"the servers have a process of their own, which cannot load this: {cause}; "
            "give a function of a module that can be imported, or have the servers in this process: process=False"
        ) from cause


def _send(pipe: IO[bytes], what: object) -> None:
    data = pickle.dumps(what)
    pipe.write(_LENGTH.pack(len(data)) + data)
    pipe.flush()


def _receive(pipe: IO[bytes]) -> Any:
    """Reads the next message; None when the other side is gone."""
    head = pipe.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(head)
    data = pipe.read(length)
    return pickle.loads(data) if len(data) == length else None


def _facts(error: BaseException) -> tuple[Any, ...]:
    """An error in a form that can be sent, as many cannot be recreated from their arguments alone."""
    with contextlib.suppress(Exception):
        again = pickle.loads(pickle.dumps(error))
        if type(again) is type(error) and str(again) == str(error):
            return (error,)
    state = {}
    for name, value in vars(error).items():
        with contextlib.suppress(Exception):
            pickle.dumps(value)
            state[name] = value
    try:
        pickle.dumps((type(error), error.args))
        type(error).__new__(type(error))
    except Exception:  # noqa: BLE001 — foreign errors may have any constructor
        base = next(
            kind for kind in (ValueError, TypeError, OSError, RuntimeError, Exception) if isinstance(error, kind)
        )
        return base, (f"{type(error).__name__}: {error}",), {}
    return type(error), error.args, state


def _error(facts: tuple[Any, ...]) -> BaseException:
    if len(facts) == 1:
        whole: BaseException = facts[0]
        return whole
    kind, given, state = facts
    error: BaseException = kind.__new__(kind)
    error.args = given
    vars(error).update(state)
    return error


def serve_parent() -> None:
    """The main function of a `ProcessHost`'s child: executes calls from standard input until it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # meant for the parent, which then stops this process
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # keeps printed output out of the answers
    lock = threading.Lock()

    def answer(number: int, done: concurrent.futures.Future[Any]) -> None:
        error = done.exception()
        with lock, contextlib.suppress(BrokenPipeError):
            if error is not None:
                _send(answers, (number, True, _facts(error)))
                return
            try:
                _send(answers, (number, False, done.result()))
            except (pickle.PicklingError, AttributeError, TypeError) as cause:
                problem = f"what it returns cannot be sent from the servers' process: {cause}"
                _send(answers, (number, True, (InAnotherProcess, (problem,), {})))

    with ThreadHost() as host:
        while (asked := _receive(sys.stdin.buffer)) is not None:
            number, forgotten, data = asked
            for key in forgotten:
                host.forget(key)
            try:
                key, function, given, named = _asked(data)
                done = host._begin(key, function, given, named)
            except Exception as error:  # noqa: BLE001 — sent to the caller
                done = concurrent.futures.Future()
                done.set_exception(error)
            done.add_done_callback(partial(answer, number))
