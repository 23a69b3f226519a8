"""Sessions of Spark for benchmarks: in one process, and on a stand-alone cluster that lives as long as a block does.

The master and its two workers of one core each are processes of this machine, on free ports; they are ended with the
block, however it ends.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["cluster", "session"]

_READY_S: Final = 60.0
_STOP_S: Final = 30.0


def session(master: str, *, quick: bool = False, conf: Mapping[str, str] | None = None) -> SparkSession:
    """The session of this process, with settings that suit both. quick: whether Java is started for work of seconds.
    conf: more settings.
    """
    from segstore.pipeline import session as sessions

    suits = {"spark.sql.shuffle.partitions": "8", "spark.driver.memory": "2g", "spark.driver.bindAddress": "127.0.0.1"}
    running = sessions.session(master, app="bench", conf=suits | dict(conf or {}), quick=quick)
    running.sparkContext.setLogLevel("ERROR")
    return running


@contextmanager
def cluster(folder: Path) -> Iterator[str]:
    """A stand-alone master with two workers of one core; gives its address."""
    import pyspark

    home = Path(pyspark.__file__).parent
    env = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable, "SPARK_HOME": str(home)}
    started = []

    def start(name: str, *command: str) -> Path:
        log = folder / f"{name}.log"
        with log.open("wb") as out:
            made = subprocess.Popen(
                [str(home / "bin" / "spark-class"), *command], stdout=out, stderr=subprocess.STDOUT, env=env
            )
        started.append(made)
        return log

    def said(log: Path, text: str) -> str:
        until = time.monotonic() + _READY_S
        while time.monotonic() < until:
            for line in log.read_text(errors="replace").splitlines():
                if text in line:
                    return line
            time.sleep(0.05)
        raise RuntimeError(f"{log.name} did not say {text!r} within {_READY_S:g} s")

    try:
        master = start(
            "master", "org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0"
        )
        url = "spark://" + said(master, "Starting Spark master at").partition("spark://")[2].strip()
        for number in range(2):
            work = ("--cores", "1", "--memory", "1g", "--webui-port", "0", "--work-dir", str(folder / f"work{number}"))
            log = start(f"worker{number}", "org.apache.spark.deploy.worker.Worker", *work, "--host", "127.0.0.1", url)
            said(log, "Successfully registered")
        yield url
    finally:
        for made in reversed(started):
            made.terminate()
        for made in started:
            made.wait(timeout=_STOP_S)
