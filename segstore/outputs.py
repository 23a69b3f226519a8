"""Standard output and standard error of a server, which never waits for their readers.

A thread writes each stream, as the write to a full pipe returns only when its reader reads. Invariants: the queue for a
reader is bounded; beyond it, standard error drops lines and says how many, and standard output fails, by name, because
a recording must not have gaps. The end of the process waits a bounded time for readers.
"""

from __future__ import annotations

import atexit
import errno
import io
import os
import select
import sys
import threading
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Final, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

UNREAD: Final = "its reader does not keep up"
_MOST_QUEUED_BYTES: Final = 64 * 1024 * 1024
_DRAIN_S: Final = 1.0


class _Output(io.FileIO):
    """Standard output or error, written by a thread. lossy: whether it drops unwritable data, and never fails."""

    def __init__(self, number: int, name: str, *, lossy: bool) -> None:
        super().__init__(number, "w", closefd=False)
        self._name = name
        self._lossy = lossy
        self._queue: deque[bytes] = deque()
        self._queued_bytes = 0
        self._dropped_lines = 0
        self._failure: OSError | None = None
        self._changed = threading.Condition()
        threading.Thread(target=self._write_queued, name=f"segstore writes {name}", daemon=True).start()

    def write(self, data: ReadableBuffer, /) -> int:
        """Queues a piece whole, however long, if less than the bound is queued."""
        piece = bytes(data)
        with self._changed:
            if self._queued_bytes >= _MOST_QUEUED_BYTES and self._failure is None and not self._lossy:
                self._failure = OSError(errno.ENOBUFS, UNREAD, self._name)
            if self._failure is not None and not self._lossy:
                raise self._failure
            if self._queued_bytes >= _MOST_QUEUED_BYTES:
                self._dropped_lines += piece.count(b"\n")
            else:
                self._queue.append(piece)
                self._queued_bytes += len(piece)
                self._changed.notify_all()
        return len(piece)

    def drain(self, timeout_s: float) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._failure or not self._queued_bytes, timeout_s)
            if self._failure is not None and not self._lossy:
                raise self._failure
            return not self._queued_bytes

    def _write_queued(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue)
                piece = memoryview(self._queue.popleft())
            size = len(piece)
            try:
                while piece:
                    try:
                        piece = piece[os.write(self.fileno(), piece) :]
                    except BlockingIOError:  # another process has made the shared descriptor non-blocking
                        select.select((), (self.fileno(),), ())
            except OSError as error:
                error.filename = self._name
                self._failure = error
            with self._changed:
                self._queued_bytes -= size
                if self._dropped_lines:
                    note = f"{self._dropped_lines} lines were dropped: their reader was too slow\n".encode()
                    self._dropped_lines = 0
                    self._queue.append(note)
                    self._queued_bytes += len(note)
                self._changed.notify_all()


def never_wait() -> None:
    """Makes writes to standard output and error of this process return at once; a stream that replaces one stays."""
    for number, name in ((1, "stdout"), (2, "stderr")):
        stream = getattr(sys, name)
        try:
            if stream.fileno() != number or isinstance(stream.buffer, _Output):
                continue
        except (AttributeError, io.UnsupportedOperation):  # that of a test
            continue
        stream.flush()
        output = _Output(number, "standard output" if number == 1 else "standard error", lossy=number == 2)
        text = io.TextIOWrapper(output, stream.encoding, stream.errors, line_buffering=number == 2)
        setattr(sys, name, text)
        atexit.register(_end, text)


def drain(stream: TextIO) -> bool:
    """Waits a bounded time for a stream's text to be written; returns whether it is. Raises OSError if that fails."""
    stream.flush()
    output = getattr(stream, "buffer", None)
    return not isinstance(output, _Output) or output.drain(_DRAIN_S)


def _end(stream: TextIO) -> None:
    with suppress(OSError):
        drain(stream)
