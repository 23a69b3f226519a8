"""`python -m bench.every`: every benchmark in turn, each in a process of its own, and what became of each.

    make bench-all ARGS=--write-docs      # all of docs/project/performance.md
    make bench-all ARGS="--quick"         # do they work?
    make bench-all ARGS="pipeline pooling"

One that fails, or takes longer than `--limit-s`, does not keep the others from running. It is named in the end, with
the time that each of them took. Exit status: 0 if all goals are met, 1 if one is missed, 2 if a benchmark failed.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Final, NamedTuple

from bench.__main__ import NAMES
from bench.pages import BENCHMARKS
from bench.processes import ROOT

__all__ = ["Ended", "main", "run_all", "summary"]

LIMIT_S: Final = 3600.0
MISSED: Final = 1
"""The status of a benchmark that ran and missed a goal. Python gives it for an uncaught error as well."""
_STOP_S: Final = 10.0
_WROTE: Final = "missed: "


class Ended(NamedTuple):
    """How a benchmark ended: "ok", "missed a goal", or why it failed."""

    name: str
    seconds: float
    how: str

    @property
    def failed(self) -> bool:
        return self.how not in ("ok", "missed a goal")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.every", description="every benchmark in turn")
    known = [each.name for each in BENCHMARKS]
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"some of {', '.join(known)}; none means all")
    parser.add_argument("--quick", action="store_true", help="small loads, for a look")
    parser.add_argument("--write-docs", action="store_true", help="write docs/project/performance.md with the results")
    parser.add_argument("--limit-s", type=float, default=LIMIT_S, help="the most that one may take (%(default)g)")
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.names if name not in known]:
        parser.error(f"{unknown[0]!r} is no benchmark; there are {', '.join(known)}")
    flags = [f"--{name}" for name in ("quick", "write-docs") if getattr(options, name.replace("-", "_"))]
    commands = {name: command_of(name, flags) for name in options.names or known}
    start = time.perf_counter()
    ended = run_all(commands, options.limit_s)
    print(summary(ended, time.perf_counter() - start))
    return 2 if any(each.failed for each in ended) else int(any(each.how != "ok" for each in ended))


def command_of(name: str, flags: Sequence[str]) -> list[str]:
    module = ["bench", name] if name in NAMES else [f"bench.{name}"]
    return [sys.executable, "-m", *module, *flags]


def run_all(commands: dict[str, list[str]], limit_s: float) -> list[Ended]:
    """Runs them one after the other; what they print is printed as they do."""
    return [_run(name, command, limit_s) for name, command in commands.items()]


def _run(name: str, command: list[str], limit_s: float) -> Ended:
    print(f"=== {name}", flush=True)
    start = time.perf_counter()
    # A group of its own: whatever it has started ends with it. Its errors are looked at, for status 1 has two meanings.
    process = subprocess.Popen(command, cwd=ROOT, start_new_session=True, stderr=subprocess.PIPE, text=True)
    try:
        _, errors = process.communicate(timeout=limit_s)
        how = _how(process.returncode, errors)
        sys.stderr.write(errors)
    except subprocess.TimeoutExpired:
        how = f"ended after {limit_s:g} s"
        _end(process)
    except BaseException:
        _end(process)
        raise
    return Ended(name, time.perf_counter() - start, how)


def _how(status: int, errors: str) -> str:
    if status == 0:
        return "ok"
    last = errors.strip().rpartition("\n")[2]
    if status == MISSED and last.startswith(_WROTE):
        return "missed a goal"
    return f"failed with status {status}: {last}" if last else f"failed with status {status}"


def _end(process: subprocess.Popen[str]) -> None:
    """SIGTERM, then SIGKILL, to all of its group."""
    for how in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, how)
            process.communicate(timeout=_STOP_S)
        except ProcessLookupError:
            break
        except subprocess.TimeoutExpired:
            continue


def summary(ended: Sequence[Ended], seconds: float) -> str:
    """A line for each and a last one that names what failed."""
    lines = ["=== all"]
    lines += [f"{each.name:<18}{each.seconds:>8.1f} s  {each.how}" for each in ended]
    failed = [each.name for each in ended if each.failed]
    lines.append(f"{'in all':<18}{seconds:>8.1f} s  {'failed: ' + ', '.join(failed) if failed else 'none failed'}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
