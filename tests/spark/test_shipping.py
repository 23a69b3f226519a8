"""An archive and `--py-files` bring the package and what it requires to executors that have nothing installed; without
them the error says what to do."""

from __future__ import annotations

import compileall
import os
import shutil
import socket
import subprocess
import tarfile
import venv
from pathlib import Path

import pytest

from tests.spark import SPARK
from tests.spark.standalone import ROOT
from tests.test_packaging import declared, lend

pytestmark = SPARK

RECORDED = ROOT / "fixtures" / "traces" / "byte_stream.jsonl"
DRIVER = """
import sys
from segstore.pipeline.session import session
from segstore.pipeline.trace.rows import trace_rows

master, traces = sys.argv[1:]
spark = session(master, quick=True)
found = spark.read.format("segstore.trace").load(traces)
assert found.count() == sum(1 for _ in trace_rows(traces))
def where(_):
    import os, segstore
    yield from (os.getcwd(), sys.executable, os.path.abspath(segstore.__file__))
print(*spark.sparkContext.parallelize([0], 1).mapPartitions(where).collect())
spark.stop()
"""
MASTER = "local-cluster[1,1,512]"
"""A stand-alone cluster whose master and worker run in the driver's Java; its executor is a process of its own."""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment that has what this package requires, and not this package; its archive lies beside it."""
    environment = tmp_path_factory.mktemp("driver") / "environment"
    venv.create(environment, symlinks=True)
    (packages,) = environment.glob("lib/python*/site-packages")
    for name in declared("segstore").union(("numpy", "pyarrow")):
        lend(name, packages)
    with tarfile.open(environment.with_name("environment.tar.gz"), "w:gz", compresslevel=0) as packed:
        for path in sorted(environment.rglob("*")):
            if path.is_symlink() and path.parent == packages:
                packed.add(path.resolve(), path.relative_to(environment), filter=_without_caches)
            elif not path.is_dir() or path.is_symlink():
                packed.add(path, path.relative_to(environment))
    return environment


def _without_caches(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return None if member.name.endswith(("/tests", "/include")) else member


def test_executors_that_have_nothing_installed_read_a_trace_through_an_archive_and_py_files(
    environment: Path, tmp_path: Path
) -> None:
    from pyspark import __file__ as spark_file

    home, folder = tmp_path / "spark", environment.parent
    home.mkdir()
    for name in ("bin", "jars", "python"):  # executors work below Spark's home
        (home / name).symlink_to(Path(spark_file).parent / name)
    package = tmp_path / "package"
    shutil.copytree(ROOT / "segstore", package / "segstore", ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    compileall.compile_dir(package, quiet=1, legacy=True)  # once, where each Python would compile what it imports
    shutil.make_archive(str(folder / "segstore"), "zip", package)
    (folder / "job.py").write_text(DRIVER)
    program = [
        *(f"{home}/bin/spark-submit", "--master", MASTER, "--conf", "spark.executor.memory=512m"),
        *("--driver-java-options", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"),
        *("--archives", "environment.tar.gz#environment", "--py-files", "segstore.zip"),
        *("job.py", MASTER, str(RECORDED)),
    ]
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    variables |= {"PYSPARK_PYTHON": "./environment/bin/python", "SPARK_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run(program, cwd=folder, env=variables, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr[-6_000:]
    executor, python, module = map(Path, done.stdout.split()[-3:])
    assert executor.is_relative_to(home / "work")
    assert python == executor / "environment" / "bin" / "python"
    assert module.is_relative_to(executor)
    assert module.parent.parts[-2:] == ("segstore.zip", "segstore")


def test_an_executor_without_the_package_says_where_and_what_to_do(bare: Path, tmp_path: Path) -> None:
    from pyspark import __file__ as spark_file
    from pyspark import cloudpickle

    from segstore.pipeline.stream.source import StreamSource
    from segstore.pipeline.trace.source import TraceSource

    of = {"controller": "tcp://a:9090", "scope": "a", "stream": "b"}
    libraries = [*(Path(spark_file).parent / "python" / "lib").glob("*.zip")]
    program = "import pickle, sys; pickle.load(open(sys.argv[1], 'rb'))"
    for number, source in enumerate((TraceSource({"path": "x"}), StreamSource(of))):
        assert repr(cloudpickle.loads(cloudpickle.dumps(source)).read_options) == repr(source.read_options)
        (tmp_path / str(number)).write_bytes(cloudpickle.dumps(source))
        done = subprocess.run(
            [bare, "-c", program, tmp_path / str(number)],
            env={"PYTHONPATH": os.pathsep.join(map(str, libraries))}, cwd=tmp_path,
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert f"{bare} on {socket.gethostname()} cannot import segstore: No module named 'segstore'" in done.stderr
        assert done.stderr.rstrip().endswith("in PYSPARK_PYTHON")
