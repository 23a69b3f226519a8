"""Build a single executable of the command `segstore` for machines without Python, try it, and measure it.

    python tools/packaging/make_binary.py [OUT]

PyInstaller packs this interpreter, the dependencies that the wheel declares, and segstore into OUT/segstore (dist/ by
default), in an environment of its own; that takes PyPI. The executable needs the C library of this system or a newer
one, and unpacks itself to a temporary directory when it starts. It is tried in an empty root directory if this process
may change its root, else in an empty directory without an environment; the output names which.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
HELLO: Final = "ffffff81000000080000001100000005\n"
RUNS: Final = 5
ENTRY: Final = "from segstore.__main__ import run\n\nrun()\n"
WITHOUT: Final = "without it, a virtual environment with `pip install .` has the same command"
LIBRARIES: Final = (
    *("/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1"),
    *("libc.so.6", "libdl.so.2", "libpthread.so.0", "libz.so.1", "libm.so.6", "librt.so.1", "libutil.so.1"),
    *("libgcc_s.so.1", "libstdc++.so.6"),
)
"""What the executable and the modules in it take from the system."""


class CannotBuildError(Exception):
    """The machine lacks something: one sentence that names it and what works without it."""


def build(out: Path, work: Path, *, one_file: bool) -> Path:
    """Builds the executable below `out`; returns its path. Raises CannotBuildError."""
    lacking = [each for each in ("objdump", "strip") if shutil.which(each) is None]
    if lacking:
        raise CannotBuildError(f"an executable takes {' and '.join(lacking)}: apt install binutils; {WITHOUT}")
    python = work / "venv" / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--python", python, "--quiet", "--disable-pip-version-check", "install")
    try:
        subprocess.run((sys.executable, "-m", "venv", "--without-pip", work / "venv"), check=True)
        for package in ("pyinstaller>=6.11", ROOT):
            subprocess.run((*pip, package), check=True)
    except subprocess.CalledProcessError as error:
        raise CannotBuildError(
            f"an executable takes PyInstaller from PyPI, which could not be installed; {WITHOUT}"
        ) from error
    entry = work / "entry.py"
    entry.write_text(ENTRY, encoding="utf-8")
    form = "--onefile" if one_file else "--onedir"
    options = ("--noconfirm", form, "--strip", "--name", "segstore", "--log-level", "ERROR", "--distpath", out)
    found = ("--collect-all", "segstore", "--collect-submodules", "uvicorn", "--copy-metadata", "segstore")
    places = ("--workpath", work / "build", "--specpath", work)
    subprocess.run((python, "-m", "PyInstaller", *options, *found, *places, entry), check=True, cwd=work)
    return out / "segstore" if one_file else out / "segstore" / "segstore"


def system_libraries() -> list[Path]:
    """Returns the files of `LIBRARIES` that this machine has, under the names by which they are loaded."""
    folders = [*Path("/lib").glob("*-linux-gnu"), *Path("/usr/lib").glob("*-linux-gnu"), Path("/lib64")]
    found = []
    for name in LIBRARIES:
        places = [Path(name)] if name.startswith("/") else [folder / name for folder in folders]
        found += [place for place in places if place.exists()][:1]
    return found


def empty_root(root: Path) -> None:
    """Fills a directory with the C library and an empty /tmp: no Python, no shell."""
    for library in system_libraries():
        copy = root / library.relative_to("/")
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(library.read_bytes())
        copy.chmod(0o755)
    (root / "tmp").mkdir()
    (root / "tmp").chmod(0o1777)


def cpu_ms(*command: str | Path) -> float:
    """Returns the least CPU time of several runs of a command, its children included, in milliseconds."""
    best = float("inf")
    for _ in range(RUNS):
        null = [(os.POSIX_SPAWN_OPEN, 1, "/dev/null", os.O_WRONLY, 0)]
        pid = os.posix_spawn(command[0], list(map(str, command)), os.environ, file_actions=null)
        _, status, usage = os.wait4(pid, 0)
        if status:
            raise RuntimeError(f"{command[0]} ended with status {os.waitstatus_to_exitcode(status)}")
        best = min(best, (usage.ru_utime + usage.ru_stime) * 1000)
    return best


def tried(executable: Path, work: Path) -> str:
    """Decodes a frame with a copy of the executable where no Python is; returns where. Raises CalledProcessError."""
    root = work / "root"
    root.mkdir()
    empty_root(root)
    copy = root / "segstore"
    copy.write_bytes(executable.read_bytes())
    copy.chmod(0o755)
    command: tuple[str | Path, ...] = (copy, "decode", "-")
    where, environment = "in an empty directory, without PATH; this process may not change its root", {}
    if os.geteuid() == 0:
        command, where = ("chroot", root, "/segstore", "decode", "-"), "in an empty root directory"
        environment = {"PATH": "/usr/sbin:/usr/bin"}  # where chroot is; nothing of it is in the root directory
    done = subprocess.run(command, input=HELLO, capture_output=True, text=True, check=True, cwd=root, env=environment)
    if not done.stdout.startswith("HELLO"):
        raise RuntimeError(f"{executable} printed {done.stdout!r}")
    return where


def main(out: Path) -> int:
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="segstore-binary-") as name:
        work = Path(name)
        try:
            executable = build(out, work, one_file=True)
        except CannotBuildError as error:
            print(error, file=sys.stderr)
            return 2
        print(f"{executable}: {executable.stat().st_size / 1e6:.1f} MB, tried {tried(executable, work)}")
        installed = work / "venv" / "bin" / "segstore"
        own, other = cpu_ms(executable, "--version"), cpu_ms(installed, "--version")
        print(f"CPU of segstore --version: {own:.0f} ms; of the installed command: {other:.0f} ms (least of {RUNS})")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "dist").resolve()))
