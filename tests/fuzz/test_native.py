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


WITHOUT_CHECKS = """
import sys
from pathlib import Path
from tests.fuzz import native

place = Path(sys.argv.pop())
for path in native.SOURCES.iterdir():
    if path.suffix in (".c", ".h"):
        text = path.read_text("utf-8").replace("if (size > left(r))", "if (size > left(r) + 64)")
        (place / path.name).write_text(text, "utf-8")
native.SOURCES = place
sys.exit(native.main())
"""


def fuzz(*program: str, last: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Runs many inputs. last: one more argument of the program, behind those of the fuzzer."""
    return subprocess.run(
        [sys.executable, *program, "--no-keep", "--runs", "100000", "--seed", "1", *([] if last is None else [last])],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if name != "SEGSTORE_CODEC"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


@pytest.mark.needs("gcc with its sanitizers, on Linux")
def test_a_read_past_the_end_is_found_and_its_input_reported(tmp_path: Path) -> None:
    done = fuzz("-c", WITHOUT_CHECKS, last=tmp_path)
    assert done.returncode == 1
    # A sanitizer or an assertion stops it, or C has a value where Python has an error, whichever comes first.
    assert re.search(
        "ERROR: AddressSanitizer: (heap-buffer-overflow|unknown-crash)|: Assertion `|^segstore.wire.errors.",
        done.stderr,
        re.MULTILINE,
    )
    assert re.search(r"fuzz-native: seed 1, input [0-9a-f]+", done.stderr)


@pytest.mark.needs("gcc with its sanitizers, on Linux")
def test_many_guided_executions_with_sanitizers_break_no_promise() -> None:
    done = fuzz("-m", "tests.fuzz.native")
    assert done.returncode == 0, done.stderr[-3000:]
    summary = re.search(r"([\d,]+) inputs, (\d+) edges", done.stdout)
    assert summary is not None
    assert int(summary[1].replace(",", "")) >= 100_000
    assert int(summary[2]) > 400
