"""A stand-alone cluster of Spark on this machine: a master and workers, each a process of its own.

    with Standalone(workers=2) as cluster:
        spark = session(cluster.master)

Every port is a free one; what the processes write lies in a folder of the caller's. The driver has to be told to use
the cluster's addresses: `cluster.conf`.

Invariant: after the block no process of it is left. What a process said is in `folder`, and in the error if it does not
start.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

import pyspark

__all__ = ["Standalone"]

ROOT: Final = Path(__file__).parent.parent.parent
_PATIENCE_S: Final = 120.0
_HOST: Final = "127.0.0.1"
_QUICK: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto"


class Standalone:
    """A master and some workers.

    Attributes:
        master: its URL, for `session`.
        conf: what the session needs besides.
        folder: what the processes write.
    """

    def __init__(self, folder: Path, *, workers: int = 2, cores: int = 1, memory: str = "1g") -> None:
        self.conf: dict[str, str] = {
            "spark.driver.host": _HOST,
            "spark.driver.bindAddress": _HOST,
            "spark.executor.memory": "512m",
            "spark.executorEnv.PYTHONPATH": str(ROOT),
        }
        self.master = ""
        self.folder = folder
        self._workers = workers
        self._cores = cores
        self._memory = memory
        self._processes: list[subprocess.Popen[bytes]] = []

    def _start(self, name: str, *arguments: str) -> Path:
        home = Path(pyspark.__file__).parent
        said = self.folder / f"{name}.log"
        environment = os.environ | {"SPARK_HOME": str(home), "SPARK_LOCAL_IP": _HOST, "SPARK_DAEMON_JAVA_OPTS": _QUICK}
        environment |= {"PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT)}
        with said.open("wb") as out:
            self._processes.append(
                subprocess.Popen(
                    [str(home / "bin" / "spark-class"), *arguments],
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    env=environment,
                    cwd=self.folder,
                    start_new_session=True,  # a worker starts executors: they end with it
                )
            )
        return said

    def _wait_for(self, pattern: str, said: Path) -> str:
        end = time.monotonic() + _PATIENCE_S
        while time.monotonic() < end:
            if (found := re.search(pattern, said.read_text(errors="replace"))) is not None:
                return found[0]
            if (status := self._processes[-1].poll()) is not None:
                raise RuntimeError(f"{said.stem} ended with {status}:\n{said.read_text(errors='replace')[-3000:]}")
            time.sleep(0.05)
        raise RuntimeError(f"{said.stem} did not start:\n{said.read_text(errors='replace')[-3000:]}")

    def __enter__(self) -> Standalone:
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            said = self._start(
                "master",
                "org.apache.spark.deploy.master.Master",
                *("--host", _HOST, "--port", "0", "--webui-port", "0"),
            )
            self.master = self._wait_for(rf"spark://{re.escape(_HOST)}:[0-9]+(?=\s)", said)
            self._wait_for("I have been elected leader", said)
            for number in range(self._workers):
                said = self._start(
                    f"worker{number}",
                    "org.apache.spark.deploy.worker.Worker",
                    *("--host", _HOST, "--port", "0", "--webui-port", "0", "--cores", str(self._cores)),
                    *("--memory", self._memory, "--work-dir", str(self.folder / f"work{number}"), self.master),
                )
                self._wait_for("Successfully registered with master", said)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends all processes of the cluster. Can be called twice."""
        for process in reversed(self._processes):
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
        for process in self._processes:
            try:
                process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(timeout=30)
        self._processes.clear()
        for work in self.folder.glob("work*/"):
            shutil.rmtree(work, ignore_errors=True)
