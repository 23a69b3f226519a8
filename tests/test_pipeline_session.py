"""Without Spark or Java everything else works, and what needs them says what to install."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from segstore import pipeline
from segstore.pipeline import session
from tests.looped import looped
from tests.ports import held_port


@pytest.fixture
def java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A `java` that says whatever the test writes into it."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    session.java_version.cache_clear()
    yield tmp_path / "bin" / "java"  # type: ignore[misc]
    session.java_version.cache_clear()


@pytest.mark.parametrize(
    ("said", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('openjdk version "25" 2025-09-16', 25),
        ('java version "1.8.0_292"', 8),
        ("something else", None),
    ],
)
def test_the_version_of_java_is_read(java: Path, said: str, version: int | None) -> None:
    java.write_text(f"#!/bin/sh\necho '{said}' >&2\n")
    java.chmod(0o755)
    assert session.java_version() == version


def test_without_java_it_is_said_which_one_is_needed(java: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "find_spec", lambda name: object())
    with pytest.raises(session.SparkMissing, match="Java 17 or newer and found none") as caught:
        session.session()
    assert caught.value.part == "Java"
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    java.chmod(0o755)
    session.java_version.cache_clear()
    with pytest.raises(session.SparkMissing, match="is Java 11"):
        session.session()


@looped(
    ("master", "said"),
    [
        ("nonsense", "'nonsense' is not a Spark master"),
        ("local[2", r"'local\[2' is not a Spark master"),
        ("spark://", "'spark://' is not a Spark master"),
        ("spark://here", "'here' in 'spark://here' is not the host and port"),
        ("spark://here:99999", "is not the host and port"),
    ],
)
def test_what_is_no_master_is_refused_before_java_is_started(master: str, said: str) -> None:
    found = session.master_missing(master)
    assert found.part == "master"
    assert re.search(said, str(found))


def test_a_master_that_is_not_there_is_named_and_one_of_several_is_enough() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening, held_port() as nowhere:
        here = listening.getsockname()[1]
        assert session.master_missing(f"spark://127.0.0.1:{nowhere},127.0.0.1:{here}") is None
        found = session.master_missing(f"spark://127.0.0.1:{nowhere}")
        where = f"spark://127.0.0.1:{nowhere}"
        assert str(found) == (
            f"no master of Spark at {where}: Connection refused; see that it runs, or name another one"
        )


def test_a_pyspark_without_data_sources_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "find_spec", lambda name: None if name == "pyspark.sql.datasource" else object())
    with pytest.raises(session.SparkMissing, match=r"PySpark 4\.0 or newer is needed"):
        session.session()


@looped(
    ("trace_bytes", "cores", "partitions"),
    [(0, 2, 2), (640 << 20, 2, 10), (10**12, 1_600, 2_000), (10**12, 3_000, 3_000)],
)
def test_shuffle_partitions_grow_with_the_trace_to_a_limit(trace_bytes: int, cores: int, partitions: int) -> None:
    assert session.shuffle_partitions(trace_bytes, cores) == partitions


def test_the_package_imports_nothing_that_a_machine_may_lack() -> None:
    code = (
        "import sys; import segstore.pipeline.trace.rows, segstore.pipeline.trace.growth;"
        "from segstore.pipeline import DEFAULT_COLUMNS, BadTrace, SparkMissing;"
        "print([name for name in ('pyspark', 'pyarrow', 'numpy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


def test_the_package_names_what_it_offers() -> None:
    for name in pipeline.__all__:
        assert getattr(pipeline, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = pipeline.nothing
