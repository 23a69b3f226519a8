"""Spark that dies while a command works is told in a sentence, and leaves no report."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.server.support import PATIENCE_S
from tests.spark import SPARK

pytestmark = SPARK

RECORDED = Path(__file__).parent.parent.parent / "fixtures" / "traces"


def commands(parent: int) -> dict[int, str]:
    """The processes that another has started, and their command lines; none of one that has just ended."""
    found: dict[int, str] = {}
    for children in Path(f"/proc/{parent}/task").glob("*/children"):
        with suppress(FileNotFoundError, ProcessLookupError):
            for child in children.read_text().split():
                found[int(child)] = Path(f"/proc/{child}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    return found


def java_at_work(command: int) -> int | None:
    """Its Java, once that has started a worker."""
    for child, line in commands(command).items():
        if "java" in line.partition(" ")[0] and any("pyspark.daemon" in each for each in commands(child).values()):
            return child
    return None


@pytest.mark.needs("Linux's /proc")
def test_java_that_is_killed_while_a_report_is_made_is_told_in_a_sentence(tmp_path: Path) -> None:
    out = tmp_path / "report"
    arguments = ["trace", "report", str(RECORDED), "-o", str(out), "--master", "local[1]"]
    with subprocess.Popen(
        [sys.executable, "-m", "segstore", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as command:
        try:
            while (java := java_at_work(command.pid)) is None:  # until the command ends, or the test's timeout
                assert command.poll() is None, command.communicate()
                time.sleep(0.02)
            os.kill(java, signal.SIGKILL)
            _, said = command.communicate(timeout=PATIENCE_S)
        finally:
            command.kill()
    assert command.returncode == 1
    assert "Traceback" not in said
    assert said.splitlines()[-1].startswith("segstore: Spark at local[1] failed: ")
    assert list(tmp_path.iterdir()) == []
