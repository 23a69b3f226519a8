"""What the command line prints, and how its log looks.

Invariant: foreign text reaches a terminal through `printable` only, so neither a file nor a peer can move the cursor or
pose as another line. A line of the log is short, whatever names a peer has chosen.
"""

from __future__ import annotations

import logging
import sys

import click

__all__ = ["LogFormatter", "echo", "log_plainly", "log_to_stderr"]

_LONGEST_LOGGED = 1_000


def echo(line: object, *, err: bool = False) -> None:
    """Prints one line."""
    from segstore.wire.printable import printable

    click.echo(printable(str(line)), err=err)


class LogFormatter(logging.Formatter):
    """Messages on one line, cut; tracebacks line by line, each cut."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 — as the base class has it
        from segstore.wire.printable import printable

        record.message = printable(record.message, _LONGEST_LOGGED)
        return super().formatMessage(record)

    def format(self, record: logging.LogRecord) -> str:
        from segstore.wire.printable import printable

        message, *traceback = super().format(record).split("\n")
        return "\n".join([printable(message), *(printable(each, _LONGEST_LOGGED) for each in traceback)])


def log_to_stderr() -> None:
    """The log of a server: warnings, with their time."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LogFormatter("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(handlers=[handler])


def log_plainly() -> None:
    """Warnings of a command that sets up no log look as its other lines do."""
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(LogFormatter("%(message)s"))
