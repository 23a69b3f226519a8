"""Standard output, standard error and the log of a server, which never waits for their readers.

A thread writes each stream, as the write to a full pipe returns only when its reader reads. Invariants: the queue for a
reader is bounded; beyond it, standard error drops lines and says how many, and standard output fails, by name, because
a recording must not have gaps. The end of the process waits a bounded time for readers. A place in the code logs a
bounded number of warnings a second, and their count beyond it, so peers cannot fill a disk with their mistakes.
"""

from __future__ import annotations

import atexit
import errno
import io
import logging
import os
import select
import sys
import threading
from collections import deque
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Any, Final, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

UNREAD: Final = "its reader does not keep up"
_MOST_QUEUED_BYTES: Final = 64 * 1024 * 1024
_DRAIN_S: Final = 1.0
_MOST_A_SECOND: Final = 10
"""Warnings of one place in the code."""


class _Output(io.RawIOBase):
    """Standard output or error, written by a thread. lossy: whether it drops unwritable data, and never fails."""

    def __init__(self, number: int, name: str, *, lossy: bool) -> None:
        self._number = number
        self._name = name
        self._lossy = lossy
        self._queue: deque[bytes] = deque()
        self._queued_bytes = 0
        self._dropped_lines = 0
        self._failure: OSError | None = None
        self._changed = threading.Condition()
        threading.Thread(target=self._write_queued, name=f"segstore writes {name}", daemon=True).start()

    def fileno(self) -> int:
        return self._number

    def isatty(self) -> bool:
        return os.isatty(self._number)

    def writable(self) -> bool:
        return True

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
                        piece = piece[os.write(self._number, piece) :]
                    except BlockingIOError:  # another process has made the shared descriptor non-blocking
                        select.select((), (self._number,), ())
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
        output: Any = _Output(number, "standard output" if number == 1 else "standard error", lossy=number == 2)
        text = io.TextIOWrapper(output, stream.encoding, stream.errors, line_buffering=number == 2)
        setattr(sys, name, text)
        atexit.register(_end, text)


def drain(stream: TextIO) -> bool:
    """Waits a bounded time for a stream's text to be written; returns whether it is. Raises OSError if that fails."""
    stream.flush()
    output = getattr(stream, "buffer", None)
    return not isinstance(output, _Output) or output.drain(_DRAIN_S)


def _end(stream: TextIO) -> None:
    logging.shutdown()  # logs the last counts
    with suppress(OSError):
        drain(stream)


class BoundedLog(logging.StreamHandler[TextIO]):
    """A log with bounded warnings: `_MOST_A_SECOND` from a place in the code, and the number of further warnings."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._counts: dict[tuple[str, int], int] = {}
        self._newest: dict[tuple[str, int], logging.LogRecord] = {}

    def emit(self, record: logging.LogRecord) -> None:
        place = record.pathname, record.lineno
        count = self._counts.get(place, 0) + 1
        if record.levelno < logging.WARNING or count <= _MOST_A_SECOND:
            super().emit(record)
        else:
            self._newest[place] = record
        if record.levelno < logging.WARNING:
            return
        if count == 1:
            timer = threading.Timer(1.0, self._report, [place])
            timer.daemon = True
            with suppress(RuntimeError):  # there can be no more threads; `close` reports
                timer.start()
        self._counts[place] = count

    def _report(self, place: tuple[str, int]) -> None:
        """Logs how many records of a place were suppressed, and starts to count again."""
        with self.lock or nullcontext():
            more, record = self._counts.pop(place, 0) - _MOST_A_SECOND, self._newest.pop(place, None)
            if record is not None:
                record.msg, record.args, record.exc_info = f"and {more} more, the last: {record.getMessage()}", (), None
                super().emit(record)

    def close(self) -> None:
        for place in tuple(self._counts):
            self._report(place)
        super().close()
