"""Modules of the client that Cython compiles: they are loaded as built, current, and their source runs as well."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
TYPED = sorted(ROOT.glob("client/**/*.pxd"))
PROGRAM = """
import importlib, sys
print(*(importlib.import_module(name).__file__ for name in sys.argv[1:]), sep="\\n")
"""


def loaded(codec: str) -> list[Path]:
    """The files that a new process loads the modules from."""
    names = [".".join(("segstore", *path.relative_to(ROOT).with_suffix("").parts)) for path in TYPED]
    command = [sys.executable, "-c", PROGRAM, *names]
    environment = {**os.environ, "SEGSTORE_CODEC": codec}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    return [Path(line).resolve() for line in done.stdout.splitlines()]


def test_each_typed_module_is_compiled() -> None:
    listed = {path.relative_to(ROOT).with_suffix("").as_posix() for path in TYPED}
    source = (ROOT / "setup.py").read_text("utf-8")
    assert {name for name in listed if f'"{name}"' in source} == listed != set()


@pytest.mark.needs("the extension segstore._speed")
def test_built_modules_are_loaded_and_not_older_than_their_source() -> None:
    for module, typed in zip(loaded(""), TYPED, strict=True):
        source = typed.with_suffix(".py")
        assert module.suffix in (".so", ".pyd"), f"{source} is not compiled: make setup"
        changed_s = max(source.stat().st_mtime, typed.stat().st_mtime)
        assert module.stat().st_mtime >= changed_s, f"{source} was changed after it was compiled: make setup"


def test_the_codec_in_python_selects_the_source() -> None:
    assert loaded("python") == [path.with_suffix(".py") for path in TYPED]
