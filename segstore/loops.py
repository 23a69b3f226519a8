"""The event loop of servers and taps: uvloop where it is installed, asyncio's own elsewhere, as on Windows.

uvloop has no wheels for Windows, and asyncio's loop there delivers no signals: both differences end here.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import signal
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """Returns the function that creates a server's loop."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop
    return uvloop.new_event_loop


def run(main: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine to its end on a loop of its own, as `asyncio.run` does."""
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(main)


def on_signal(number: signal.Signals, callback: Callable[..., object], *args: Any) -> None:
    """Calls `callback(*args)` on the running loop when the process receives a signal."""
    loop = asyncio.get_running_loop()
    try:
        loop.add_signal_handler(number, callback, *args)
    except NotImplementedError:  # Windows
        signal.signal(number, lambda _number, _frame: loop.call_soon_threadsafe(callback, *args))


async def in_a_thread(function: Callable[..., T], *given: Any) -> T:
    """Runs a blocking function in a daemon thread, which does not keep the process alive."""
    done: concurrent.futures.Future[T] = concurrent.futures.Future()

    def run() -> None:
        if done.set_running_or_notify_cancel():
            try:
                done.set_result(function(*given))
            except BaseException as error:  # noqa: BLE001 — raised to the waiter
                done.set_exception(error)

    threading.Thread(target=run, name="segstore calls", daemon=True).start()
    return await asyncio.wrap_future(done)
