"""The corpora hold, and fuzzing works: what `make fuzz` does, briefly."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz import corpus
from tests.fuzz.targets import TARGETS
from tests.looped import looped

ROOT = Path(__file__).parents[2]
EACH_TARGET = looped("target", TARGETS)


@EACH_TARGET
def test_every_input_of_the_corpus_keeps_the_promises(target: str) -> None:
    found = corpus.inputs(target)
    assert found
    for data in found:
        TARGETS[target](data)


@EACH_TARGET
@given(st.binary(max_size=300))
def test_any_input_keeps_the_promises(target: str, data: bytes) -> None:
    TARGETS[target](data)


def fuzz(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.fuzz", *arguments],
        cwd=ROOT,
        env=os.environ | {"FUZZ_SECONDS": "10"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


@pytest.mark.needs("atheris")
@EACH_TARGET
def test_a_few_thousand_guided_executions_break_no_promise(target: str) -> None:
    done = fuzz("--no-keep", "--runs", "1500", target)
    assert done.returncode == 0, done.stderr[-3000:]
    executed = [int(line.split()[-1]) for line in done.stderr.splitlines() if "number_of_executed_units" in line]
    assert executed
    assert executed[0] > 500
