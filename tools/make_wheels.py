"""Build a wheel for each CPython of this machine and a pure one, and try each in a clean environment.

    python tools/make_wheels.py [OUT]

Interpreters are looked up by the names in `VERSIONS`, on PATH and among pyenv's. Wheels are built from one sdist. A
wheel is tried away from the checkout, with what pip installs beside it: it has to name its codec, to agree with the
recorded vectors, and to hold the GIL on a free-threaded build. What is not on this machine is named; what fails is
named, too, and makes the exit code 1.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
VERSIONS: Final = ("3.11", "3.12", "3.13", "3.13t", "3.14", "3.14t")
_WHICH: Final = (
    "import platform, sys, sysconfig; print(platform.python_implementation(), "
    "'%d.%d' % sys.version_info[:2] + 't' * bool(sysconfig.get_config_var('Py_GIL_DISABLED')))"
)
_HOLDS_GIL: Final = "import sys, segstore._speed; sys.exit(not getattr(sys, '_is_gil_enabled', lambda: True)())"


class Failed(Exception):
    """A step of making a wheel failed; the text says which, with the last lines of its output."""


def interpreters() -> dict[str, Path]:
    """Returns the interpreters of this machine by version, such as "3.13t"."""
    installed = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    found = {}
    for version in VERSIONS:
        on_path = shutil.which(f"python{version}")
        candidates = [*([Path(on_path)] if on_path else []), *sorted(installed.glob(f"*/bin/python{version}"))]
        works = (candidate for candidate in candidates if _said(candidate, "-c", _WHICH) == f"CPython {version}")
        if (python := next(works, None)) is not None:
            found[version] = python
    return found


def _said(*command: str | Path) -> str:
    """Returns what a command prints, whether it succeeds or not: pyenv's own commands fail for what is not selected."""
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def _run(*command: str | Path, cwd: Path, **env: str) -> str:
    """Runs a command without this process's Python settings, and returns what it prints. Raises Failed."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "SEGSTORE_"))}
    done = subprocess.run(command, cwd=cwd, env=kept | env, capture_output=True, text=True, check=False)
    if done.returncode:
        last = "\n".join(f"{done.stdout}\n{done.stderr}".strip().splitlines()[-20:])
        raise Failed(f"{' '.join(map(str, command))} exited with {done.returncode}:\n{last}")
    return done.stdout


def _venv(python: Path, home: Path) -> Path:
    _run(python, "-m", "venv", home, cwd=home.parent)
    return home / "bin" / "python"


def make(python: Path, sdist: Path, out: Path, work: Path, *, pure: bool) -> Path:
    """Builds a wheel, tries it, and moves it to `out`. Raises Failed."""
    builder, built = _venv(python, work / "builds"), work / "built"
    _run(*_pip(builder), "wheel", "--no-deps", "-w", built, sdist, cwd=work, **({"PURE_PYTHON": "1"} if pure else {}))
    (wheel,) = built.glob("*.whl")
    if wheel.name.endswith("-none-any.whl") is not pure:
        raise Failed(f"{wheel.name} is built, which has {'the' if pure else 'no'} extension")
    clean = _venv(python, work / "clean")
    _run(*_pip(clean), "install", wheel, cwd=work)
    said = _run(clean.with_name("segstore"), "--version", cwd=work).strip()
    if not said.endswith(f"codec {'python' if pure else 'c'}"):
        raise Failed(f"{wheel.name} is another codec's: {said}")
    if not pure:
        _run(clean, "-c", _HOLDS_GIL, cwd=work)
    # A copy, because Python would import the checkout's `segstore` from beside `tests`.
    shutil.copytree(ROOT / "tests" / "conformance", work / "tests" / "conformance")
    _run(clean, "-m", "tests.conformance", ROOT / "fixtures" / "vectors", cwd=work)
    return Path(shutil.move(wheel, out / wheel.name))


def _pip(python: Path) -> tuple[Path | str, ...]:
    return python, "-m", "pip", "--quiet", "--disable-pip-version-check"


def main(out: Path) -> int:
    out.mkdir(parents=True, exist_ok=True)
    found, failed = interpreters(), False
    with tempfile.TemporaryDirectory(prefix="segstore-wheels-") as name:
        folder = Path(name)
        _run(sys.executable, "-m", "build", "--sdist", "--outdir", folder, ROOT, cwd=folder)
        (sdist,) = folder.glob("*.tar.gz")
        wanted = [(f"CPython {version}", python, False) for version, python in found.items()]
        for at, (what, python, pure) in enumerate([*wanted, ("pure Python", Path(sys.executable), True)]):
            work = folder / str(at)
            work.mkdir()
            try:
                said = str(make(python, sdist, out, work, pure=pure))
            except Failed as error:
                said, failed = f"failed: {error}", True
            print(f"{what}: {said}", flush=True)
    if missing := [version for version in VERSIONS if version not in found]:
        print(f"not on this machine: CPython {', '.join(missing)}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "dist").resolve()))
