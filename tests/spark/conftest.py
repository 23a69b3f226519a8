"""One Spark session for the tests of this folder that use it, and what is left behind of its own account."""

from __future__ import annotations

import venv
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.soak.python_forks import Forks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The session: two cores, two partitions a shuffle, everything it writes in a folder of this run.

    What costs more than the small queries of tests is left out: compiled classes for each, imports in each Python that
    Spark starts, programs that set the permissions of the files of a checkpoint.
    """
    from segstore.pipeline.session import session

    folder: Path = tmp_path_factory.mktemp("spark")
    conf = {
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.local.dir": str(folder / "local"),
        "spark.driver.memory": "1g",
        "spark.sql.streaming.stopTimeout": "30s",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.adaptive.enabled": "false",  # to plan anew as rows come costs more than they do
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.streaming.checkpointFileManagerClass": (
            "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
        ),
    }
    with Forks(folder) as forks:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PYSPARK_PYTHON", forks.python)
            running = session("local[2]", app="tests", conf=conf, quick=True)
        running.sparkContext.setLogLevel("ERROR")
        gateway = running.sparkContext._gateway
        yield running
        running.stop()
        assert gateway is not None
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(timeout=240)


@pytest.fixture(scope="session")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python that has nothing installed."""
    home = tmp_path_factory.mktemp("bare") / "environment"
    venv.create(home, symlinks=True)
    return home / "bin" / "python"


@pytest.fixture(autouse=True)
def nothing_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail the test that leaves a query running. Sockets and threads to Java are the session's, made when needed."""
    spark = request.getfixturevalue("spark") if "spark" in request.fixturenames else None
    yield
    if spark is None:
        return
    left = [query.name or query.id for query in spark.streams.active]
    for query in spark.streams.active:
        query.stop()
    assert left == []
