"""Whether Spark's Python workers can import this package, and what to do if they cannot.

Spark starts workers with the session's `PYSPARK_PYTHON`: on the driver's machine, where a source plans, and on the
executors, where it reads and writes. `check_workers` runs that program once on the driver's machine. The executors'
machines are not known there. So objects that Spark sends to them derive from `Shipped`: where this package is missing,
loading one fails with a sentence that names the machine, the program and the remedy.

Invariant: the loader of a `Shipped` object is pickled by value and needs only Python and PySpark, which every worker
has.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, wraps
from importlib import import_module
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final

from pyspark import SparkFiles

from segstore.pipeline.session import SparkMissing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ANSWER_S: Final = 60.0
_CLOUDPICKLE: Final[Any] = import_module("pyspark.cloudpickle")

_CLOUDPICKLE.register_pickle_by_value(sys.modules[__name__])


class Shipped:
    """An object of a data source that Spark sends to Python workers.

    Spark shows errors of this package, and of files, as their sentence, without a traceback before it.
    """

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for name, method in [*vars(cls).items()]:
            if isinstance(method, FunctionType) and (name == "__init__" or not name.startswith("_")):
                setattr(cls, name, _in_a_sentence(method))

    def __reduce__(self) -> tuple[Any, ...]:
        return _load, (_CLOUDPICKLE.dumps(type(self)),), self.__dict__


def _in_a_sentence(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def call(*args: Any, **named: Any) -> Any:
        with _sentences():
            result = method(*args, **named)
            return _iterated(result) if isinstance(result, Iterator) else result

    return call


def _iterated(result: Iterator[Any]) -> Iterator[Any]:
    with _sentences():
        yield from result


@contextmanager
def _sentences() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        known = isinstance(error, OSError) or type(error).__module__.startswith("segstore.")
        # A worker ends with the error, so the variable does not outlive it.
        if known and str(getattr(sys.modules["__main__"].__spec__, "name", "")).startswith("pyspark."):
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise


def _load(kind: bytes) -> Any:
    """Returns an object of a pickled class. Runs in workers, where this module may be missing."""
    import pickle
    import socket

    try:
        return object.__new__(pickle.loads(kind))
    except ImportError as error:
        raise ImportError(
            f"{sys.executable} on {socket.gethostname()} cannot import segstore: {error}. Install segstore[spark] "
            "there, or ship an environment that has it with spark.archives and name its Python in PYSPARK_PYTHON"
        ) from error


def check_workers(spark: SparkSession) -> None:
    """Raises SparkMissing if the Python that Spark starts for workers cannot import this package on this machine."""
    name = spark.sparkContext.pythonExec
    program = shutil.which(name)
    if program == sys.executable:
        return
    added = [path for path in sys.path if path.startswith(SparkFiles.getRootDirectory())]  # --py-files
    reason = "there is no such program" if program is None else _import_error(program, tuple(added))
    if reason:
        raise SparkMissing(
            "segstore",
            f"Spark starts {name!r} for Python workers, which cannot import segstore: {reason}. Set PYSPARK_PYTHON "
            f"before the session starts, on this machine to {sys.executable}",
        )


@cache
def _import_error(program: str, added: tuple[str, ...]) -> str:
    """Returns why a Python cannot import what workers need; empty if it can. added: more folders and archives."""
    path = os.pathsep.join((*added, *filter(None, [os.environ.get("PYTHONPATH")])))
    try:
        done = subprocess.run(
            [program, "-c", "import segstore.pipeline.trace.batches"],
            env=os.environ | {"PYTHONPATH": path},
            capture_output=True,
            text=True,
            timeout=_ANSWER_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return done.stderr.strip().rpartition("\n")[2] if done.returncode else ""
