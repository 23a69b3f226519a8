"""Fuzzing of the extension works: what `make fuzz-native` does, briefly; and its corpus holds."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz import corpus

ROOT = Path(__file__).parents[2]


@pytest.mark.needs("the extension segstore._speed")
def test_every_input_of_the_corpus_is_read_as_python_reads_it() -> None:
    from tests.fuzz.native_target import ASK, run_input

    found = corpus.inputs("native")
    assert sum(map(len, found)) <= corpus.MAX_CORPUS_BYTES
    assert sum(ASK.decode(data) is not None for data in found) > 20
    for data in (b"", *found):
        run_input(data, random.Random(data))


def fuzz() -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.fuzz.native", "--no-keep", "--runs", "20000", "--seed", "1"],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if name != "SEGSTORE_CODEC"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


@pytest.mark.needs("gcc with its sanitizers, on Linux")
def test_many_guided_executions_with_sanitizers_break_no_promise() -> None:
    done = fuzz()
    assert done.returncode == 0, done.stderr[-3000:]
    summary = re.search(r"([\d,]+) inputs, (\d+) edges", done.stdout)
    assert summary is not None
    assert int(summary[1].replace(",", "")) >= 20_000
    assert int(summary[2]) > 400
