"""The lines of standard input, for `segstore produce`."""

from __future__ import annotations

import asyncio
import os
import sys
from codecs import BOM_UTF8
from collections.abc import AsyncIterator
from functools import partial
from typing import Final

import click

_READ_BYTES: Final = 256 * 1024


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
        async for chunk in chunks(sys.stdin.fileno()):
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
        key, found, event = b"", b"", line
        if self._key_delimiter is not None and self._key_delimiter in line:
            key, found, event = line.partition(self._key_delimiter)
        if len(event) > self._most_bytes:
            raise self._too_long(0)
        if not found:
            return event, self._key
        try:
            return event, (key.removeprefix(BOM_UTF8) if self._number == 1 else key).decode()
        except UnicodeDecodeError as error:
            raise self._wrong(f"its routing key is not UTF-8 at byte {error.start}", 0) from error

    def _too_long(self, ahead: int = 1) -> click.ClickException:
        return self._wrong(f"an event has at most {self._most_bytes} bytes (max_large_event_bytes)", ahead)

    def _wrong(self, said: str, ahead: int = 1) -> click.ClickException:
        return click.ClickException(f"standard input: event {self._number + ahead}: {said}")


async def chunks(descriptor: int) -> AsyncIterator[bytes]:
    """Yields what can be read, without changing the descriptor, which other processes may share."""
    loop = asyncio.get_running_loop()
    while True:
        ready: asyncio.Future[None] = loop.create_future()
        try:
            loop.add_reader(descriptor, partial(_set, ready))
        except (PermissionError, NotImplementedError):
            await asyncio.sleep(0)  # a file, whose reads do not wait, or Windows
        else:
            try:
                await ready
            finally:
                loop.remove_reader(descriptor)
        try:
            data = os.read(descriptor, _READ_BYTES)
        except OSError as error:
            raise click.ClickException(f"standard input: {error.strerror}") from error
        if not data:
            return
        yield data


def _set(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)
