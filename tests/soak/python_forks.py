"""A Python for Spark that is there at once: its processes are forked from one that has imported what they need.

Spark starts an interpreter for each kind of work that Python does for it, and again for each driver; to import the
client takes each of them longer than its work, and on a loaded machine longer than Spark waits. `Forks.python` is a
program to give to Spark instead of the interpreter. It hands its arguments, environment and files to the process that
imported everything once, which forks; processes are processes still, and can be killed.

    with Forks(folder) as forks:
        sys.executable = forks.python      # in the driver, before `session()`

Invariant: a program that was started lives as long as what was forked for it, and ends with its status. Refused: all
but `-m MODULE` and `-c PROGRAM`, which is all that Spark and `check_workers` ask for.
"""

from __future__ import annotations

import gc
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Final

__all__ = ["Forks"]

ROOT: Final = Path(__file__).parent.parent.parent
_IMPORTED: Final = (
    *("pyarrow", "pyspark.daemon", "pyspark.worker", "pyspark.sql.streaming.python_streaming_source_runner"),
    *("pyspark.sql.worker.commit_data_source_write", "pyspark.sql.worker.create_data_source"),
    *("pyspark.sql.worker.data_source_pushdown_filters", "pyspark.sql.worker.lookup_data_sources"),
    *("pyspark.sql.worker.plan_data_source_read", "pyspark.sql.worker.python_streaming_sink_runner"),
    *("pyspark.sql.worker.write_into_data_source", "segstore.pipeline.check", "segstore.pipeline.stream.commit"),
    *("segstore.pipeline.report.analysis_steps", "segstore.pipeline.stream.source", "segstore.pipeline.trace.source"),
    "tests.soak.stream_struck",
)
_PROGRAM: Final = """#!{python} -SE
import os, socket, sys
with socket.socket(socket.AF_UNIX) as to:
    to.connect({address!r})
    socket.send_fds(to, [b"."], [0, 1, 2])
    said = [os.getcwd(), str(len(sys.argv)), *sys.argv, *(f"{{name}}={{value}}" for name, value in os.environ.items())]
    to.sendall("\\0".join(said).encode(errors="surrogateescape"))
    to.shutdown(socket.SHUT_WR)
    status = to.recv(1)
sys.exit(status[0] if status else 1)
"""


class Forks:
    """The process that forks. Use with `with`.

    Attributes:
        python: the program that stands for the interpreter.
    """

    def __init__(self, folder: Path) -> None:
        address = str(folder / "forks")
        self.python = str(folder / "python")
        program = Path(self.python)
        program.write_text(_PROGRAM.format(python=sys.executable, address=address))
        program.chmod(0o755)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(address)
        self._listener.listen(64)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.soak.python_forks", str(self._listener.fileno())],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            pass_fds=[self._listener.fileno()],
        )

    def __enter__(self) -> Forks:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=60)
        self._listener.close()


def _serve(listener: socket.socket) -> None:
    for name in _IMPORTED:
        import_module(name)
    gc.freeze()  # Spark's workers collect garbage after each task
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for what was forked but its program
    while True:
        ready, _, _ = select.select([listener, 0], [], [])
        if 0 in ready:
            return
        caller, _ = listener.accept()
        if os.fork():
            caller.close()
            continue
        status = 1
        try:
            listener.close()
            status = _run(caller)
        finally:
            caller.send(bytes([status & 255]))
            os._exit(status & 255)


def _run(caller: socket.socket) -> int:
    """In the forked process: what the program was asked for."""
    _, files, _, _ = socket.recv_fds(caller, 1, 3)
    said = b""
    while more := caller.recv(1 << 16):
        said += more
    folder, count, *rest = said.decode(errors="surrogateescape").split("\0")
    arguments, environment = rest[1 : int(count)], rest[int(count) :]
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(each.split("=", 1) for each in environment)
    sys.path[:0] = [each for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each]
    if arguments[:1] not in (["-m"], ["-c"]):
        print(f"only -m MODULE and -c PROGRAM can be forked, not {arguments}", file=sys.stderr)
        return 2
    sys.argv = arguments[1:]
    try:
        if arguments[0] == "-c":
            exec(sys.argv[0], {})
        else:
            runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    return 0


if __name__ == "__main__":
    import_module("tests.soak.python_forks")._serve(socket.socket(fileno=int(sys.argv[1])))
