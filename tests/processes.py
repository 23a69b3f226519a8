"""Runs commands for their tests: servers as processes, others in this process."""

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import uvloop
from click.testing import CliRunner, Result

from segstore.cli import main

uvloop.new_event_loop().close()  # the first loop of a process opens pipes that stay, which are no test's fault

PATIENCE_S = 60.0
_ANY_PORTS = ("--port", "0", "--controller-port", "0", "--http-port", "0")
SERVE = (sys.executable, "-m", "segstore", "serve", *_ANY_PORTS, "--announce", "json")
"""A server with a controller and an HTTP port, which announces its addresses in JSON."""


@contextmanager
def started(command: Sequence[str]) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process, which is killed at the end of the block if it still runs, and the first line that it printed."""
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            yield process, process.stdout.readline()
        finally:
            if process.poll() is None:
                process.kill()


class Running:
    """A server command that runs, and what it announced."""

    def __init__(self, process: subprocess.Popen[str], line: str) -> None:
        self.process = process
        self.line = line

    @property
    def announced(self) -> dict[str, str | None]:
        made: dict[str, str | None] = json.loads(self.line)
        return made


def refusal(command: Sequence[str]) -> tuple[int, str]:
    """The exit status and the standard error of a command that does not start."""
    made = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert made.stdout == ""
    return made.returncode, made.stderr


def invoke(*words: object, **options: Any) -> Result:
    """Runs a command in this process, and raises an error that the command does not expect."""
    return CliRunner().invoke(main, [str(word) for word in words], catch_exceptions=False, **options)


def refusal_here(*words: str) -> tuple[int, str]:
    """The exit status and the standard error of a command that ends before it starts, run in this process."""
    refused = invoke(*words, prog_name="segstore")
    assert refused.stdout == ""
    return refused.exit_code, refused.stderr
