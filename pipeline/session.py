"""Creates Spark sessions that have this project's data sources, or says what has to be installed.

Filters are not pushed down to the sources unless that is asked for. Spark (4.3.0) keeps what a filter left of a source
with the DataFrame that was filtered: of `a = df.where(x)` and `b = df.where(y)`, the union has the rows of one of them
twice, and after `a.count()` so has `df.count()`. It is right only where each DataFrame is used in one query, once. The
options of a source (`commands`, `connections`, `fromNs`, `untilNs` of traces) do the same work and are safe.

Invariant: what is set here is what the sources need or what makes a session on one machine start sooner; whatever the
caller passes in `conf` wins. Python workers are this interpreter, for Spark would take the first `python3` of the path.
Refused, with `SparkMissing`: a machine without PySpark, or without Java of `JAVA` or newer; what is no master of Spark,
and masters of a cluster none of which can be connected to, for which Spark would look for a minute.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA: Final = 17
"""The oldest Java that Spark 4 runs on."""
FILTER_PUSH_DOWN: Final = "spark.sql.python.filterPushdown.enabled"
SOURCES: Final = ("segstore.pipeline.trace.source", "segstore.pipeline.stream.source")
"""Modules with a function `sources(push_filters)` that gives the data sources to register."""

_VERSION: Final = re.compile(r'version "(?:1\.)?(\d+)')
_MASTER: Final = re.compile(r"local(\[[^\]]*\]|-cluster\[[^\]]*\])?|spark://.+|yarn|k8s://.+")
_CONNECT_S: Final = 5.0
_QUICK: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto"
"""Java starts sooner and compiles less."""


class SparkMissing(RuntimeError):
    """Spark cannot run here, or not where it was asked to. Attribute: part, what is missing."""

    def __init__(self, part: str, message: str) -> None:
        super().__init__(message)
        self.part = part


def session(
    master: str = "local[*]",
    *,
    app: str = "segstore",
    conf: Mapping[str, str] | None = None,
    quick: bool = False,
    push_filters: bool = False,
) -> SparkSession:
    """The session of this process, started if there is none, with the data sources registered.

    quick: whether Java is started for work of seconds: some seconds sooner, and half as fast once it is warm.
    conf: settings of Spark, over those made here. push_filters: for those who use each DataFrame once, as above.
    Raises SparkMissing.
    """
    problem = missing() or master_missing(master)
    if problem is not None:
        raise problem
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(app).master(master)
    for name, value in (_settings(quick, push_filters) | dict(conf or {})).items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    register(spark, push_filters=push_filters)
    return spark


def _settings(quick: bool, push_filters: bool) -> dict[str, str]:
    settings = {
        FILTER_PUSH_DOWN: str(push_filters).lower(),
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
    }
    if quick:
        settings["spark.driver.extraJavaOptions"] = settings["spark.executor.extraJavaOptions"] = _QUICK
    return settings


def register(spark: SparkSession, *, push_filters: bool = False) -> None:
    """Makes the formats of this project known to a session that the caller has started; again, to change its mind.

    It is the active session of this thread then. There Spark (4.3.0) looks for the format of what is written, and in a
    thread that has none it finds no format of Python's (DATA_SOURCE_NOT_FOUND): each thread that writes says this once,
    or `session(…)`.

    push_filters: needs the session's `FILTER_PUSH_DOWN`, or Spark refuses what is read; a ValueError says so at once.
    """
    if push_filters and str(spark.conf.get(FILTER_PUSH_DOWN, "false")).lower() != "true":
        raise ValueError(f"filters are pushed down only in a session with {FILTER_PUSH_DOWN} set to true")
    java = getattr(spark, "_jvm", None)
    if java is not None:  # Spark Connect has none, and no threads of its own to tell
        java.SparkSession.setActiveSession(spark._jsparkSession)
    for name in SOURCES:
        for source in import_module(name).sources(push_filters):
            spark.dataSource.register(source)


def missing() -> SparkMissing | None:
    """What keeps Spark from running here; None if nothing does."""
    if find_spec("pyspark") is None or find_spec("pyarrow") is None or find_spec("numpy") is None:
        return SparkMissing("PySpark", "Spark is not installed: pip install 'segstore[spark]'")
    version = java_version()
    if version is None:
        return SparkMissing(
            "Java", f"Spark needs Java {JAVA} or newer and found none: install it and set JAVA_HOME, or put it on PATH"
        )
    if version < JAVA:
        return SparkMissing("Java", f"Spark needs Java {JAVA} or newer; what JAVA_HOME or PATH name is Java {version}")
    return None


def master_missing(master: str) -> SparkMissing | None:
    """What is wrong with a master's address; None if it is one, and one of a cluster can be connected to."""
    if not _MASTER.fullmatch(master):
        return SparkMissing(
            "master",
            f"{master!r} is no master of Spark, such as local[*], local[4], spark://HOST:PORT, yarn, k8s://URL",
        )
    if not master.startswith("spark://"):
        return None
    reason: object = None
    for each in master.removeprefix("spark://").split(","):
        host, _, port = each.rpartition(":")
        if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 1 << 16:
            return SparkMissing("master", f"{each!r} in {master!r} is no host and port of a master of Spark")
        try:
            with socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_S):
                return None
        except OSError as error:
            reason = error.strerror or error
    return SparkMissing("master", f"no master of Spark at {master}: {reason}; see that it runs, or name another one")


@cache
def java_version() -> int | None:
    """The version of the Java that Spark would start; None if there is none."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=str(Path(home) / "bin")) if home else shutil.which("java")
    if java is None:
        return None
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = _VERSION.search(said.stderr + said.stdout)
    return int(found[1]) if found else None
