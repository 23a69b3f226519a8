"""Measure what an installation costs: its size on disk by package, and the CPU time of imports and of a start.

    python tools/footprint.py [--write-docs]

segstore is installed from this checkout into an environment of its own, without extras. CPU times are user and system
time of a whole process, interpreter included, the least of `RUNS` runs, which other work on the machine disturbs least.
--write-docs writes docs/project/footprint.md.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
PAGE: Final = ROOT / "docs" / "project" / "footprint.md"
RUNS: Final = 15
MB: Final = 1_000_000
PAYS_FOR: Final = {
    "grpcio": "the controller, on both sides",
    "protobuf": "messages of the controller",
    "uvloop": "the event loop of servers; not on Windows",
    "pydantic": "settings, fault rules and bodies of the HTTP APIs, with their checks and schemas",
    "fastapi": "the control API and its OpenAPI description",
    "starlette": "the REST API, and fastapi",
    "uvicorn": "the HTTP server of both",
    "h11": "HTTP/1.1, for uvicorn",
    "msgspec": "the commands' values, and JSON",
    "construct": "the schema of the wire protocol",
    "click": "the command line",
    "PyYAML": "files of fault rules",
    "PyJWT": "delegation tokens",
    "sortedcontainers": "the order of table keys",
    "segstore": "segstore itself",
}
SIZES: Final = """
import importlib.metadata as m
for each in m.distributions():
    size = sum(f.locate().stat().st_size for f in each.files or [] if f.locate().is_file())
    print(each.name, size)
"""


def installed(work: Path) -> Path:
    """Installs segstore; returns the interpreter of its environment."""
    subprocess.run((sys.executable, "-m", "venv", work), check=True)
    python = work / "bin" / "python"
    pip = (python, "-m", "pip", "--quiet", "--disable-pip-version-check", "install", "--compile")
    subprocess.run((*pip, ROOT), check=True)
    return python


def sizes(python: Path) -> dict[str, int]:
    """Returns the bytes of each installed distribution, compiled modules included, without those of pip."""
    said = subprocess.run((python, "-c", SIZES), check=True, capture_output=True, text=True, cwd="/").stdout
    found = {name: int(size) for name, _, size in (line.partition(" ") for line in said.splitlines())}
    return {name: size for name, size in found.items() if name not in ("pip", "setuptools")}


def required_by(python: Path, names: Iterable[str]) -> dict[str, str]:
    """Returns, for each installed distribution, those that require it on this machine."""
    pip = (python, "-m", "pip", "--disable-pip-version-check", "show")
    shown = subprocess.run((*pip, *names), check=True, capture_output=True, text=True).stdout
    fields = [line.partition(": ")[::2] for line in shown.splitlines()]
    found = {field: [value for name, value in fields if name == field] for field in ("Name", "Required-by")}
    return dict(zip(found["Name"], found["Required-by"], strict=True))


def import_ms(python: Path, module: str) -> float:
    """Returns the CPU time of a process that imports a module."""

    def once() -> float:
        pid = os.posix_spawn(python, (str(python), "-I", "-c", f"import {module}"), os.environ)
        usage = os.wait4(pid, 0)[2]
        return (usage.ru_utime + usage.ru_stime) * 1000

    return min(once() for _ in range(RUNS))


def serve_ms(python: Path) -> float:
    """Returns the CPU time of `segstore serve` until it listens, to a tick of the kernel's clock."""

    def once() -> float:
        command = (python.with_name("segstore"), "serve", "--port", "0", "--controller-port", "0", "--announce", "json")
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd="/") as process:
            assert process.stdout is not None
            process.stdout.readline()
            ticks = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
            process.send_signal(signal.SIGTERM)
        return (int(ticks[11]) + int(ticks[12])) * 1000 / os.sysconf("SC_CLK_TCK")

    return min(once() for _ in range(RUNS))


def page(python: Path) -> str:
    """Returns the page with everything measured."""
    found = sorted(sizes(python).items(), key=lambda each: -each[1])
    whose = required_by(python, (name for name, _ in found))
    uses = {name: PAYS_FOR.get(name) or f"required by {whose[name]}" for name, _ in found}
    rows = [f"| {name} | {size / MB:.1f} | {uses[name]} |" for name, size in found]
    cpu = [
        ("the interpreter alone", import_ms(python, "sys"), "–"),
        ("`import segstore.wire`", import_ms(python, "segstore.wire"), "80"),
        ("`import segstore.client`", import_ms(python, "segstore.client"), "250"),
        ("`segstore serve`, until it listens", serve_ms(python), "350"),
    ]
    lines = (
        "# Footprint",
        "",
        "Measured by `make footprint ARGS=--write-docs`: an installation without extras, compiled modules included.",
        "",
        "| Package | MB | Used for |\n|---|---|---|",
        *rows,
        f"| **{len(found) - 1} packages and segstore** | **{sum(size for _, size in found) / MB:.1f}** | |",
        "",
        f"CPU time of a whole process, the least of {RUNS} runs:",
        "",
        "| | ms | Goal on a calm machine |\n|---|---|---|",
        *(f"| {what} | {ms:.0f} | {goal} |" for what, ms, goal in cpu),
    )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="segstore-footprint-") as name:
        text = page(installed(Path(name)))
    print(text)
    if "--write-docs" in sys.argv[1:]:
        PAGE.write_text(text, encoding="utf-8")
