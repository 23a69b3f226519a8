"""Runs the commands for a cluster, and ends them; reads the lines of standard input.

Exit status: 0; 1 for an error of the cluster or of the input; 2 for wrong options; 128 and the signal's number if
SIGINT or SIGTERM ended it. The first signal ends reading, and events that were submitted are stored; before reading has
started, and as a second signal, it ends the command. A command that prints ends when the reader of its pipe has gone.
"""

from __future__ import annotations

import asyncio
import os
import select
import signal
import stat
import sys
from codecs import BOM_UTF8
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, Final

import click

from segstore import loops
from segstore.cli.pravega.cluster import ClusterOptions
from segstore.client import Client, ClientError

_READ_BYTES: Final = 256 * 1024


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


class Lines:
    """The events in standard input, each with its routing key. Memory is bounded by `most_bytes` and one read."""

    def __init__(self, delimiter: bytes, key_delimiter: bytes | None, key: str | None, most_bytes: int) -> None:
        self._delimiter = delimiter
        self._key_delimiter = key_delimiter
        self._key = key
        self._most_bytes = most_bytes
        self._number = 0

    async def __aiter__(self) -> AsyncIterator[tuple[bytes, str | None]]:
        """Raises ClickException for closed standard input, a line above the limit, and a key that is not UTF-8."""
        if sys.stdin is None:
            raise click.ClickException("standard input is closed: there are no events to write")
        held = bytearray()
        searched = 0
        async for chunk in _chunks(sys.stdin.fileno()):
            held += chunk
            begun = 0
            while (end := held.find(self._delimiter, max(begun, searched))) >= 0:
                yield self._split(bytes(held[begun:end]))
                begun = end + len(self._delimiter)
            del held[:begun]
            searched = max(len(held) - len(self._delimiter) + 1, 0)
            if len(held) > self._most_bytes:
                raise self._too_long()
        if held:
            yield self._split(bytes(held))

    def _split(self, line: bytes) -> tuple[bytes, str | None]:
        self._number += 1
        key, delimiter, event = b"", b"", line
        if self._key_delimiter is not None and self._key_delimiter in line:
            key, delimiter, event = line.partition(self._key_delimiter)
        if len(event) > self._most_bytes:
            raise self._too_long(0)
        if not delimiter:
            return event, self._key
        try:
            return event, (key.removeprefix(BOM_UTF8) if self._number == 1 else key).decode()
        except UnicodeDecodeError as error:
            raise self._wrong(f"its routing key is not UTF-8 at byte {error.start}", 0) from error

    def _too_long(self, ahead: int = 1) -> click.ClickException:
        return self._wrong(f"an event has at most {self._most_bytes} bytes (max_large_event_bytes)", ahead)

    def _wrong(self, problem: str, ahead: int = 1) -> click.ClickException:
        return click.ClickException(f"standard input: event {self._number + ahead}: {problem}")


async def _chunks(descriptor: int) -> AsyncIterator[bytes]:
    """Yields what can be read, without changing the descriptor, which other processes may share."""
    try:
        while data := await loops.in_a_thread(_read, descriptor):
            yield data
    except OSError as error:
        raise click.ClickException(f"standard input: {error.strerror}") from error


def _read(descriptor: int) -> bytes:
    while True:
        try:
            return os.read(descriptor, _READ_BYTES)
        except BlockingIOError:  # another process has made the shared descriptor non-blocking
            select.select((descriptor,), (), ())
