"""Without Spark or Java everything else works, and what needs them says what to install."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from segstore import pipeline
from segstore.pipeline import session


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


def test_without_pyspark_it_is_said_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "find_spec", lambda name: None if name == "pyspark" else object())
    with pytest.raises(session.SparkMissing, match=r"pip install 'segstore\[spark\]'") as caught:
        session.session()
    assert caught.value.part == "PySpark"


def test_the_package_imports_nothing_that_a_machine_may_lack() -> None:
    code = (
        "import sys; from segstore.pipeline import trace_rows, trace_growth, DEFAULT_COLUMNS, BadTrace, SparkMissing;"
        "print([name for name in ('pyspark', 'pyarrow', 'numpy', 'dpkt') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


def test_the_package_names_what_it_offers() -> None:
    for name in pipeline.__all__:
        assert getattr(pipeline, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = pipeline.nothing
