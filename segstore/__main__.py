"""The process of the command `segstore`, also `python -m segstore`.

Invariants, from before the command line is imported: Ctrl-C ends the process without a traceback; no file or socket
gets the number of a standard stream that the caller closed, where output of this process and its libraries would reach
it.
"""

import errno
import os
import signal
import sys

__all__: list[str] = []


def run() -> None:
    """Runs the command line with the arguments of the process, and exits."""
    _occupy_standard_streams()
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
    """Opens the standard streams that are closed. Reading gives nothing; writing to standard output fails."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError as error:
            if error.errno != errno.EBADF:
                raise
            os.open(os.devnull, os.O_RDONLY if number < 2 else os.O_RDWR)  # takes the lowest free number, this one
    if sys.stdout is None:
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 — as long as the process


if __name__ == "__main__":
    run()
