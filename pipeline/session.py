"""Creates Spark sessions with this project's data sources, or raises an error that names what to install.

Filters are not pushed down to the sources, because Spark (4.3.0) attaches a pushed filter to the DataFrame that was
filtered: for `a = df.where(x)` and `b = df.where(y)`, the union has the rows of `a` or of `b` twice, and after
`a.count()` even `df.count()` is wrong. The options of a source (`commands`, `connections`, `fromNs`, `untilNs` of
traces) have the same effect and are safe.

Invariant: this module sets only options that the sources need or that make a local session start faster; the caller's
`conf` takes precedence. Python workers use PYSPARK_PYTHON, or this interpreter if that is not set, where Spark would
take the first `python3` on PATH. Refused, with `SparkMissing`: no PySpark, no Java of version `JAVA` or newer, a
malformed master URL, unreachable cluster masters, which Spark would try for a minute, and workers without this package.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from importlib import import_module, resources
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from segstore.wire.extras import pip_command

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

JAVA: Final = 17
"""The oldest Java that Spark 4 runs on."""

MOST_PARTITIONS: Final = 2_000
"""A shuffle has a block for each task before it and each partition after it: with a partition for 64 MB, the number of
blocks would grow with the square of the trace's size. With more partitions Spark also knows only their average size."""

_SHUFFLE_BYTES: Final = 64 * 1024 * 1024
_PRUNING: Final = "segstore.pipeline.PruneColumns"
_VERSION: Final = re.compile(r'version "(?:1\.)?(\d+)')
_WITHOUT: Final = "`segstore trace report --engine local` needs no Java"
_MASTER: Final = re.compile(r"local(\[[^\]]*\]|-cluster\[[^\]]*\])?|spark://.+|yarn|k8s://.+")
_CONNECT_S: Final = 5.0
_QUICK: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto"
"""Options that make Java start faster and compile less."""


class SparkMissing(RuntimeError):
    """Spark cannot run here, or not on the given master. Attribute: part, the missing part."""

    def __init__(self, part: str, message: str) -> None:
        super().__init__(message)
        self.part = part


def session(
    master: str = "local[*]", *, app: str = "segstore", conf: Mapping[str, str] | None = None, quick: bool = False
) -> SparkSession:
    """Returns this process's session, started on demand, with the data sources registered.

    quick: tune Java for short work: starts some seconds faster, but runs half as fast once warm. conf: Spark settings,
    which override those made here. Raises SparkMissing.
    """
    problem = missing() or master_missing(master)
    if problem is not None:
        raise problem
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(app).master(master)
    settings = {
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
    }
    if quick:
        settings["spark.driver.extraJavaOptions"] = settings["spark.executor.extraJavaOptions"] = _QUICK
    for name, value in (settings | dict(conf or {})).items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    register(spark)
    return spark


def shuffle_partitions(trace_bytes: int, cores: int) -> int:
    """Returns the `spark.sql.shuffle.partitions` with which to analyse traces of this size: one for about 64 MB of
    trace, at least one a core, otherwise at most `MOST_PARTITIONS`.
    """
    return max(cores, min(trace_bytes // _SHUFFLE_BYTES, MOST_PARTITIONS))


def register(spark: SparkSession) -> None:
    """Registers this project's data sources with a session that the caller has started. Can be called again.

    Makes it the active session of this thread. Spark (4.3.0) looks up the format of writes in the active session, and
    finds no Python format in a thread without one (DATA_SOURCE_NOT_FOUND): each thread that writes must call this or
    `session(…)` once. Raises SparkMissing if the Python that the session starts for workers cannot import this package.
    """
    java = getattr(spark, "_jvm", None)
    if java is not None:  # Spark Connect has no JVM here and no per-thread sessions
        java.SparkSession.setActiveSession(spark._jsparkSession)
        import_module("segstore.pipeline.workers").check_workers(spark)
        prune_columns(spark)
    from segstore.pipeline.stream.source import StreamSource
    from segstore.pipeline.trace.source import TraceSource

    spark.dataSource.register(TraceSource)
    spark.dataSource.register(StreamSource)


def prune_columns(spark: SparkSession) -> None:
    """Makes a session of this process read only the columns of a trace that a query uses.

    Spark (4.3.0) gives data sources in Python all columns of their table. `PruneColumns.java` is a rule for its
    optimizer that changes this; it is compiled in the driver's Java by Janino, with which Spark compiles the code that
    it generates. Queries give the same rows with and without the rule. A Spark whose internals differ, so that the rule
    does not compile, works without it and logs a warning.
    """
    from py4j.protocol import Py4JJavaError

    methods = spark._jsparkSession.experimental()
    rules = methods.extraOptimizations()
    if any(rules.apply(at).ruleName() == _PRUNING for at in range(rules.length())):
        return
    java = spark._jvm
    assert java is not None
    compiler = java.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(java.java.lang.Thread.currentThread().getContextClassLoader())
    try:
        compiler.cook(resources.files(__package__).joinpath("PruneColumns.java").read_text("utf-8"))
        rule = compiler.getClassLoader().loadClass(_PRUNING).newInstance()
    except Py4JJavaError as error:
        log.warning(
            "queries on traces read all columns, unless the option `columns` names some: %s", error.java_exception
        )
        return
    getattr(methods, "extraOptimizations_$eq")(rules.appended(rule))


def missing() -> SparkMissing | None:
    """Returns why Spark cannot run here, or None."""
    if find_spec("pyspark") is None or find_spec("pyarrow") is None or find_spec("numpy") is None:
        return SparkMissing("PySpark", f"Spark is not installed: {pip_command('spark')}")
    if find_spec("pyspark.sql.datasource") is None:
        return SparkMissing("PySpark", "PySpark 4.0 or newer is needed: older versions have no data sources in Python")
    version = java_version()
    if version is None:
        return SparkMissing(
            "Java",
            f"Spark needs Java {JAVA} or newer and found none: install it and set JAVA_HOME, or put it on PATH; "
            f"{_WITHOUT}",
        )
    if version < JAVA:
        return SparkMissing(
            "Java", f"Spark needs Java {JAVA} or newer; what JAVA_HOME or PATH name is Java {version}; {_WITHOUT}"
        )
    return None


def master_missing(master: str) -> SparkMissing | None:
    """Returns an error for an invalid master URL or a cluster without a reachable master; else None."""
    if not _MASTER.fullmatch(master):
        return SparkMissing(
            "master",
            f"{master!r} is not a Spark master, such as local[*], local[4], spark://HOST:PORT, yarn, k8s://URL",
        )
    if not master.startswith("spark://"):
        return None
    reason: object = None
    for address in master.removeprefix("spark://").split(","):
        host, _, port = address.rpartition(":")
        if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 1 << 16:
            return SparkMissing("master", f"{address!r} in {master!r} is not the host and port of a Spark master")
        try:
            with socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_S):
                return None
        except OSError as error:
            reason = error.strerror or error
    return SparkMissing("master", f"no master of Spark at {master}: {reason}; see that it runs, or name another one")


@cache
def java_version() -> int | None:
    """Returns the version of the Java that Spark would start, or None."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=str(Path(home) / "bin")) if home else shutil.which("java")
    if java is None:
        return None
    try:
        version = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = _VERSION.search(version.stderr + version.stdout)
    return int(match[1]) if match else None
