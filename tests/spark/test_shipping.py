"""An archive brings the package to workers that have nothing installed, and `--py-files` to workers that have what it
requires; without it the error says what to do."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tarfile
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from segstore.pipeline.session import SparkMissing, register
from tests.spark import SPARK
from tests.spark.standalone import ROOT, Standalone
from tests.test_packaging import declared, lend, run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = SPARK

RECORDED = ROOT / "fixtures" / "traces" / "byte_stream.jsonl"
DRIVER = """
import json, sys
from segstore.pipeline.session import session
from segstore.pipeline.trace.rows import trace_rows

master, conf, traces = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3]
spark = session(master, conf=conf, quick=True)
found = spark.read.format("segstore.trace").load(traces)
assert found.count() == sum(1 for _ in trace_rows(traces))
def where(_):
    import os, segstore
    yield os.path.abspath(segstore.__file__)
print(*spark.sparkContext.parallelize([0], 1).mapPartitions(where).collect())
spark.stop()
"""


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python that has nothing installed."""
    home = tmp_path_factory.mktemp("bare") / "environment"
    venv.create(home, symlinks=True)
    return home / "bin" / "python"


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment that has what this package requires, and not this package."""
    environment = tmp_path_factory.mktemp("driver") / "environment"
    venv.create(environment, symlinks=True)
    for name in declared("segstore").union(("numpy", "pyarrow")):
        lend(name, _packages(environment))
    return environment


def _packages(environment: Path) -> Path:
    (packages,) = environment.glob("lib/python*/site-packages")
    return packages


@pytest.fixture(scope="module")
def archive(environment: Path) -> Path:
    """An archive of that environment with this package in it."""
    packages, package = _packages(environment), environment.with_name("segstore")
    shutil.copytree(ROOT / "segstore", package, ignore=shutil.ignore_patterns("__pycache__"))
    archive = environment.with_name("environment.tar.gz")
    with tarfile.open(archive, "w:gz", compresslevel=0) as packed:
        packed.add(package, (packages / "segstore").relative_to(environment))
        for path in sorted(environment.rglob("*")):
            if path.is_symlink() and path.parent == packages:
                packed.add(path.resolve(), path.relative_to(environment), filter=_without_caches)
            elif not path.is_dir() or path.is_symlink():
                packed.add(path, path.relative_to(environment))
    return archive


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    """A cluster whose worker has Spark, a Python, and nothing else."""
    with Standalone(tmp_path_factory.mktemp("cluster"), workers=1, installed=False) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel of this package without the extension in C."""
    out, copy = tmp_path_factory.mktemp("wheel"), tmp_path_factory.mktemp("checkout") / "segstore"
    copy.mkdir()
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    shutil.copytree(ROOT / "segstore", copy / "segstore", ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    pip = (sys.executable, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "--no-index", "--quiet")
    run("env", "PURE_PYTHON=1", *pip, "-w", out, copy, cwd=out)
    (wheel,) = out.glob("*.whl")
    return wheel


def _without_caches(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return None if member.name.endswith(("__pycache__", "/tests", "/include")) else member


def test_workers_that_have_nothing_installed_read_a_trace_through_an_archive(
    archive: Path, cluster: Standalone
) -> None:
    conf = cluster.conf | {"spark.archives": "environment.tar.gz#environment"}
    program = [sys.executable, "-c", DRIVER, cluster.master, json.dumps(conf), str(RECORDED)]
    where = _driven(program, archive.parent, PYSPARK_PYTHON="./environment/bin/python")
    assert where.is_relative_to(cluster.folder / "work0")


def test_workers_that_have_only_what_the_package_requires_read_a_trace_through_py_files(
    wheel: Path, environment: Path, cluster: Standalone, tmp_path: Path
) -> None:
    from pyspark import __file__ as spark_file

    shutil.copy(wheel, tmp_path / "segstore.zip")
    (tmp_path / "job.py").write_text(DRIVER)
    home = str(Path(spark_file).parent)
    settings = [part for name, value in cluster.conf.items() for part in ("--conf", f"{name}={value}")]
    program = [
        *(f"{home}/bin/spark-submit", "--master", cluster.master, *settings),
        *("--py-files", "segstore.zip", "job.py", cluster.master, "{}", str(RECORDED)),
    ]
    where = _driven(program, tmp_path, PYSPARK_PYTHON=str(environment / "bin" / "python"), SPARK_HOME=home)
    assert where.is_relative_to(cluster.folder / "work0")
    assert where.parts[-3:] == ("segstore.zip", "segstore", "__init__.py")


def _driven(program: list[str], folder: Path, **variables: str) -> Path:
    """Runs a driver; returns where its executor has found the package."""
    variables |= {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", *variables)}
    done = subprocess.run(program, cwd=folder, env=variables, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-6_000:]
    return Path(done.stdout.split()[-1])


def test_a_session_whose_workers_lack_the_package_is_told_before_its_first_job(
    spark: SparkSession, bare: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.chdir(tmp_path)  # Python imports from the working folder, which may be the checkout
    for program, reason in ((str(bare), "No module named 'segstore'"), ("./none", "there is no such program")):
        monkeypatch.setattr(spark.sparkContext, "pythonExec", program)
        with pytest.raises(SparkMissing, match=rf"{reason}\. Set PYSPARK_PYTHON .* to {sys.executable}$") as caught:
            register(spark)
        assert caught.value.part == "segstore"


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
