"""Runs the commands for a cluster, and ends them.

Exit status: 0; 1 for an error of the cluster or of the input; 2 for wrong options; 128 and the signal's number if
SIGINT or SIGTERM ended it. The first signal ends reading, and events that were submitted are stored; before reading has
started, and as a second signal, it ends the command. A command that prints ends when the reader of its pipe has gone.
"""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

import click

from segstore import loops
from segstore.cli.pravega.cluster import ClusterOptions
from segstore.client import Client, ClientError


class Interruption:
    """Ends a block at the first SIGINT or SIGTERM.

    Attributes:
        number: the signal that came, 0 without a signal.
        reader_gone: whether it ended because the reader of standard output had gone.
    """

    def __init__(self) -> None:
        self.number = 0
        self.reader_gone = False
        self._started = False
        self._scope: asyncio.Timeout | None = None

    def come(self, number: int, task: asyncio.Task[Any]) -> None:
        """Handles a signal: ends the block. Cancels the task if the block has not started, or at the second signal."""
        if self.number or not self._started:
            task.cancel()
        self.number = number
        self.end_block()

    def lose_reader(self, task: asyncio.Task[Any]) -> None:
        """Ends the block, or the task if the block has not started: its output has no reader."""
        self.reader_gone = not self._started or self._scope is not None
        if not self._started:
            task.cancel()
        self.end_block()

    def end_block(self) -> None:
        """Ends the block if it runs."""
        if self._scope is not None:
            self._scope.reschedule(0)

    @asynccontextmanager
    async def ends(self) -> AsyncIterator[None]:
        """Runs the block until it ends or `end_block` is called, which is no error."""
        self._started = True
        scope = asyncio.timeout(None)
        try:
            async with scope:
                self._scope = scope
                yield
        except TimeoutError:
            if not scope.expired():
                raise
        finally:
            self._scope = None


def run(
    cluster: ClusterOptions, work: Callable[[Client, Interruption], Awaitable[None]], *, prints: bool = False
) -> int:
    """Runs a command's work with an open client; returns the exit status.

    prints: whether the work is for the reader of standard output only. Raises ClickException, and BrokenPipeError if
    that reader has gone.
    """
    interruption = Interruption()

    async def main() -> int:
        task = asyncio.current_task()
        assert task is not None
        for number in (signal.SIGINT, signal.SIGTERM):
            loops.on_signal(number, interruption.come, number, task)
        if prints:
            _watch_output(partial(interruption.lose_reader, task))
        async with client:
            await work(client, interruption)
        return 128 + interruption.number if interruption.number else 0

    client = cluster.client()
    try:
        status = asyncio.run(main())
    except ClientError as error:
        raise click.ClickException(error.message) from error
    except ValueError as error:
        raise click.ClickException(str(error)) from error
    except asyncio.CancelledError:
        status = 128 + interruption.number
    if interruption.reader_gone:
        raise BrokenPipeError
    return status


def _watch_output(lose: Callable[[], None]) -> None:
    """Calls `lose` when the reader of standard output has gone, if that is a pipe.

    A write would fail then, but there may be nothing to write for a long time.
    """
    loop = asyncio.get_running_loop()

    def end() -> None:
        loop.remove_reader(number)
        lose()

    with suppress(OSError, NotImplementedError):  # there is no file; Windows cannot watch pipes
        number = sys.stdout.fileno()
        if stat.S_ISFIFO(os.fstat(number).st_mode):
            loop.add_reader(number, end)  # there is nothing to read, so this is called at the end only


class EventPace:
    """Spaces events evenly. per_s: events per second; None for no limit."""

    def __init__(self, per_s: float | None) -> None:
        self._per_s = per_s
        self._count = 0
        self._began_s = 0.0

    async def next(self) -> None:
        """Waits until the next event is due."""
        if self._per_s is None:
            return
        now_s = asyncio.get_running_loop().time()
        if not self._count:
            self._began_s = now_s
        due_s = self._began_s + self._count / self._per_s
        self._count += 1
        if due_s > now_s:
            await asyncio.sleep(due_s - now_s)
