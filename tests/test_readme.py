"""The page about the codec prints what it says, and its code runs; the targets that the README names exist."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.looped import looped

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
CODEC = (ROOT / "docs" / "how-to" / "use-the-codec.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", CODEC, re.DOTALL | re.MULTILINE)


def sessions() -> list[tuple[str, str]]:
    """Return each command that follows a `$`, and what it is said to print."""
    found = []
    for block in blocks("console"):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, printed = part.partition("\n")
            found.append((command, printed))
    return found


@looped(("command", "printed"), sessions())
def test_a_command_prints_what_the_page_says(command: str, printed: str) -> None:
    here = command.replace("segstore ", f"{Path(sys.executable).parent}/segstore ")
    done = subprocess.run(["/bin/sh", "-c", here], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == printed


@pytest.mark.parametrize("source", blocks("python"))
def test_the_code_of_the_page_runs(source: str, tmp_path: Path) -> None:
    program = tmp_path / "example.py"
    program.write_text(source, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, program], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_every_target_that_the_readme_names_exists() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    named = set(re.findall(r"\bmake ([a-z-]+)\b(?=[`\s])", README))
    assert {"serve", "test"} <= named <= targets
