"""Runs processes with the recorder preloaded. Needs Linux and a C compiler."""

import ctypes
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

__all__ = ["begin", "is_loaded", "run_recorded"]

_ROOT = Path(__file__).parent.parent.parent


def is_loaded() -> bool:
    """Whether the recorder is loaded in this process; it is idle until a child calls `begin`."""
    return hasattr(ctypes.CDLL(None), "recorder_begin")


def run_recorded(folder: Path, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run Python with the recorder, which is compiled in `folder`. options: of `subprocess.run`."""
    library = folder / "recorder.so"
    source = Path(__file__).with_name("recorder.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", library, source], check=True)
    environment = {**os.environ, "LD_PRELOAD": str(library)}
    return subprocess.run([sys.executable, *arguments], env=environment, cwd=_ROOT, text=True, check=False, **options)


def begin(folder: Path, log: Path, *, kill_at: int = 0, kill_sync: int = 0, fail_sync: int = 0) -> None:
    """Record the disk operations of this process below a folder; see `recorder_begin` in recorder.c."""
    numbers = (ctypes.c_long(each) for each in (kill_at, kill_sync, fail_sync))
    if ctypes.CDLL(None).recorder_begin(os.fsencode(folder), os.fsencode(log), *numbers):
        raise OSError(f"cannot record to {log}")
