"""Recordings of a running server or tap: one rule for where they go and in which form.

The ending of the name decides the form: a capture (`.wtrace`), a fixture (`.jsonl`) or packets (`.pcapng`); other
endings are refused. `-` is standard output, which gets the lines of a fixture as the traffic comes. Delegation tokens
are left out unless requested.

Invariants: a recording never replaces a file. Forms other than captures are a capture beside the file until the
recording is closed, so nothing is lost if the process is killed.
"""

from __future__ import annotations

import errno
import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from segstore.outputs import UNREAD, drain
from segstore.server.recording import TraceRecorder
from segstore.traces.files import CAPTURE, FileRecorder, TraceFile, check_suffix, of_file, write_trace
from segstore.wire import MAX_FRAME_BYTES
from segstore.wire.trace import (
    SECRET_CODES,
    Damage,
    Metadata,
    TraceWriter,
    make_mark,
    read_blocks,
    redact,
    to_line,
    write_lines,
)

if TYPE_CHECKING:
    from segstore.wire import Buffer

log = logging.getLogger(__name__)

STANDARD_OUTPUT: Final = Path("-")


def capture_for(path: Path) -> Path:
    """Returns the capture to write first for a recording at `path`. Raises UnknownSuffix, FileExistsError."""
    check_suffix(path)
    capture = path if path.suffix == CAPTURE else path.with_name(path.name + CAPTURE)
    for file in (path, capture):
        if file.exists():
            problem = "the file exists, and a recording never overwrites a file"
            raise FileExistsError(errno.EEXIST, problem, str(file))
    return capture


def finish(capture: Path, path: Path) -> None:
    """Writes a whole capture in the form of `path` and removes it, unless it is that file. Raises OSError."""
    if capture != path:
        with TraceFile(capture) as trace:
            write_trace(path, trace.records(), lambda: trace.metadata)
        capture.unlink()


class Recording:
    """A recording in progress. Attributes: recorder, for the servers; connections may be added until `close`.

    path: a file that does not exist yet, or `-`. Other options are as for `FileRecorder`. Raises UnknownSuffix,
    FileExistsError and other OSErrors.
    """

    def __init__(
        self, path: Path, metadata: Metadata, *, record_tokens: bool = False, max_frame_bytes: int = MAX_FRAME_BYTES
    ) -> None:
        self.path = path
        self.recorder: FileRecorder | LineRecorder
        if path == STANDARD_OUTPUT:
            self.recorder = LineRecorder(metadata, record_tokens=record_tokens)
            return
        capture = capture_for(path)
        try:
            self.recorder = FileRecorder(
                capture, metadata, record_tokens=record_tokens, max_frame_bytes=max_frame_bytes
            )
        except FileExistsError:
            raise
        except OSError as error:
            if str(error.filename) != str(capture):
                raise
            raise of_file(error, path) from error

    def close(self, *, keep_empty: bool = True) -> None:
        """Writes pending data, and the file in its form. Can be called twice. Raises OSError if it cannot be written.

        keep_empty: whether a file without connections and calls is kept.
        """
        recorder = self.recorder
        recorder.close()
        if recorder.failure is not None:
            raise recorder.failure
        if not isinstance(recorder, FileRecorder) or not recorder.path.exists():
            return
        if recorder.connections or recorder.calls or keep_empty:
            finish(recorder.path, self.path)
        else:
            recorder.path.unlink()


class LineRecorder(TraceRecorder):
    """Prints the records as lines of a fixture to standard output, about once a second if there is little traffic.

    If standard output fails, the recording ends with a log line and sets `failure`; the server continues.
    """

    def __init__(self, metadata: Metadata, *, record_tokens: bool) -> None:
        self.failure: OSError | None = None
        self._mark = make_mark(os.urandom(8))
        self._metadata = metadata
        self._start_ns: int | None = None
        hide = None if record_tokens else redact
        super().__init__(TraceWriter(self._mark, metadata, redact=hide, redact_codes=SECRET_CODES))

    def take_block(self) -> None:
        self._print(self._writer.take_parts())

    def _print(self, parts: list[Buffer], *, last: bool = False) -> None:
        if self.failure is not None:
            return
        try:
            for block in read_blocks(b"".join(parts), mark=self._mark):
                for record in () if isinstance(block, Damage) else block.columns:
                    if self._start_ns is None:
                        self._start_ns = record.ts_ns
                        sys.stdout.write("".join(write_lines(self._metadata, [record])))
                    else:
                        sys.stdout.write(to_line(record, self._start_ns) + "\n")
            sys.stdout.flush()
            if last and not drain(sys.stdout):
                raise OSError(errno.ENOBUFS, UNREAD)
        except OSError as error:
            log.error("recording to standard output has ended: %s", error)
            self.failure = of_file(error, "standard output")

    def close(self) -> None:
        """Prints pending records; the recording has failed if their reader does not take them in time."""
        self._print(self._writer.finish_parts(self._clock()), last=True)
