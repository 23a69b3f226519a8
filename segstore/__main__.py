"""The process of the command `segstore`, also `python -m segstore`.

Invariants, from before the command line is imported: Ctrl-C ends the process without a traceback; no file or socket
gets the number of a standard stream that the caller closed, where output of this process and its libraries would reach
it; an error of a write to standard output names it; gRPC logs errors only, not that a server has ended a connection.
"""

import errno
import io
import os
import signal
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

__all__: list[str] = []


def run() -> None:
    """Runs the command line with the arguments of the process, and exits."""
    _occupy_standard_streams()
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from segstore.cli import main

    try:
        if handler is signal.default_int_handler:
            signal.signal(signal.SIGINT, handler)
        main(prog_name="segstore")
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)


def _occupy_standard_streams() -> None:
    """Opens the standard streams that are closed. Reading gives nothing; writing to standard output fails, by name."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError as error:
            if error.errno != errno.EBADF:
                raise
            os.open(os.devnull, os.O_RDONLY if number < 2 else os.O_RDWR)  # takes the lowest free number, this one
    encoding = "utf-8" if sys.stdout is None else sys.stdout.encoding
    output = io.BufferedWriter(_Output(1, "w", closefd=False))
    sys.stdout = io.TextIOWrapper(output, encoding, line_buffering=output.isatty())
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115 — until the process ends


class _Output(io.FileIO):
    """Standard output, named in the errors of its writes."""

    def write(self, data: "ReadableBuffer", /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            error.filename = "standard output"
            raise


if __name__ == "__main__":
    run()
