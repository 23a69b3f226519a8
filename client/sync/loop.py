"""The thread with the event loop that the synchronous clients of a process share.

Invariants: the thread runs as long as a client is open, and the client that closes last joins it; a call that is
interrupted, as by Ctrl-C, is cancelled and has ended before the interruption continues. Refused: calls in a forked
process, where neither the thread nor gRPC runs, calls from the thread itself, which would wait for themselves, and
threads that gevent or eventlet has replaced: the loop would block them all.

There is one loop rather than one for each client because gRPC polls one queue for all loops of a process.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import sys
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from concurrent.futures import wait as until_done
from contextlib import suppress
from functools import partial
from typing import Any, Final, ParamSpec, TypeVar

from segstore.client.errors import Closed
from segstore.client.lifecycle import not_open

P = ParamSpec("P")
T = TypeVar("T")

_STEP_S: Final = 1.0
_EXIT_S: Final = 5.0
"""How long the exit of the interpreter waits for a loop that was not closed."""


class LoopThread:
    """A running event loop in a thread of its own.

    Attributes:
        pid: the process in which the thread runs.
    """

    def __init__(self) -> None:
        self.pid: Final = os.getpid()
        self.users = 0
        self._pending: set[Future[Any]] = set()
        """Results of calls that threads wait for."""
        started: Future[asyncio.AbstractEventLoop] = Future()
        self._thread = threading.Thread(target=self._main, args=(started,), name="segstore.client.sync", daemon=True)
        self._thread.start()
        self._loop = started.result()

    def _main(self, started: Future[asyncio.AbstractEventLoop]) -> None:
        with asyncio.Runner() as runner:  # its end cancels the tasks that are left
            loop = runner.get_loop()
            started.set_result(loop)
            loop.run_forever()
        for result in tuple(self._pending):  # calls that came after the end
            if result.set_running_or_notify_cancel():
                result.set_exception(_ended())

    @property
    def is_here(self) -> bool:
        """Whether the caller runs in the loop's thread."""
        return threading.current_thread() is self._thread

    def wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine to its end; an interruption cancels it, whenever it comes."""
        done: Future[T] = Future()
        task: asyncio.Task[T] | None = None

        def start() -> None:
            nonlocal task
            task = self._loop.create_task(coroutine)
            task.add_done_callback(partial(copy_result, done))

        def cancel() -> None:
            if task is not None:
                task.cancel()
            else:  # the interruption came before the start was scheduled
                coroutine.close()
                done.set_exception(_ended())

        self._pending.add(done)
        done.add_done_callback(self._pending.discard)
        try:
            try:
                self._loop.call_soon_threadsafe(start)
            except RuntimeError as closed:
                coroutine.close()
                raise not_open("the client", closed=True) from closed
            return _result(done)
        except Closed:
            done.cancel()
            raise
        finally:
            if not done.done():
                with suppress(RuntimeError):  # the loop has ended, and with it the call
                    self._loop.call_soon_threadsafe(cancel)
                until_done((done,))  # the interruption is what the caller gets

    def stop(self, patience_s: float | None = None) -> None:
        """Ends the loop, cancels its tasks and joins the thread. patience_s: None for no limit."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(patience_s)


def copy_result(target: Future[T], source: asyncio.Future[T]) -> None:
    """Completes a future of another thread with the result of one that is done."""
    if source.cancelled():
        target.set_exception(_ended())
    elif (error := source.exception()) is not None:
        target.set_exception(error)
    else:
        target.set_result(source.result())


def _result(done: Future[T]) -> T:
    """Waits for a result, in steps: a signal that comes just before a wait begins is noticed when it ends."""
    while True:
        try:
            return done.result(_STEP_S)
        except TimeoutError:
            if done.done():
                return done.result()


def _ended() -> Closed:
    return Closed("the client was closed during the call")


def _threads_are_replaced() -> bool:
    gevent, eventlet = sys.modules.get("gevent.monkey"), sys.modules.get("eventlet.patcher")
    return (gevent is not None and gevent.is_module_patched("threading")) or (
        eventlet is not None and eventlet.is_monkey_patched("thread")
    )


class _Shared:
    """The loop thread of this process, while a client is open."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread: LoopThread | None = None
        self._forked = False

    def enter(self) -> LoopThread:
        if self._forked:
            raise _forked()
        if _threads_are_replaced():
            raise RuntimeError(
                "the client's event loop needs a thread of the system, and gevent or eventlet has replaced these: "
                "call patch_all(thread=False), or use the client in another process"
            )
        with self._lock:
            if self._thread is None:
                self._thread = LoopThread()
            self._thread.users += 1
            return self._thread

    def leave(self, thread: LoopThread) -> None:
        with self._lock:
            thread.users -= 1
            if thread.users:
                return
            if self._thread is thread:
                self._thread = None
        thread.stop()

    def forget(self) -> None:
        """In a forked process: gRPC works there only if it was not in use at the fork."""
        self._forked = self._forked or self._thread is not None
        self._lock = threading.Lock()
        self._thread = None

    def end(self) -> None:
        """At exit: ends a loop whose clients were not closed, before the interpreter's state goes away."""
        if self._thread is not None:
            self._thread.stop(_EXIT_S)


def _forked() -> Closed:
    return Closed(
        f"process {os.getpid()} was forked while a client was open, so no client works in it: close clients before a "
        'fork, or start processes with the method "spawn" of multiprocessing'
    )


_shared: Final = _Shared()
atexit.register(_shared.end)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_shared.forget)


class Lease:
    """A client's share in the loop thread; its readers and writers use it, too."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread: LoopThread | None = None
        self._closed = False

    def start(self) -> None:
        """Starts the thread unless another client has. A no-op if called before. Raises Closed in a forked process."""
        with self._lock:
            if self._thread is None and not self._closed:
                self._thread = _shared.enter()

    def release(self) -> None:
        """Ends the thread unless another client uses it. Can be called twice, from any thread."""
        with self._lock:
            thread, self._thread, self._closed = self._thread, None, True
        if thread is not None and thread.pid == os.getpid():
            _shared.leave(thread)

    @property
    def is_running(self) -> bool:
        """Whether the client is open."""
        return self._thread is not None

    def _running(self) -> LoopThread:
        thread = self._thread
        if thread is None:
            raise not_open("the client", closed=self._closed)
        if thread.pid != os.getpid():
            raise _forked()
        if thread.is_here:
            raise RuntimeError("a function that the client calls cannot call the client, which waits for it")
        return thread

    def run(self, function: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs a coroutine function in the loop and returns its result.

        Raises what it raises, and Closed if the client is not open, was closed meanwhile, or in a forked process.
        """
        return self._running().wait(function(*args, **kwargs))

    def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Calls a function in the loop, whose objects are not for other threads. Raises as `run`."""

        async def called() -> T:
            return function(*args, **kwargs)

        return self._running().wait(called())

    def submit(
        self, function: Callable[P, Coroutine[Any, Any, asyncio.Future[T]]], *args: P.args, **kwargs: P.kwargs
    ) -> Future[T]:
        """Runs a coroutine function that returns a future; returns one that any thread can wait for.

        The future cannot be cancelled. Raises as `run`.
        """

        async def accepted() -> Future[T]:
            target: Future[T] = Future()
            target.set_running_or_notify_cancel()
            (await function(*args, **kwargs)).add_done_callback(partial(copy_result, target))
            return target

        return self._running().wait(accepted())
