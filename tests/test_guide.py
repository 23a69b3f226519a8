"""The guide says what happens: what `segstore serve` prints, and that the programs of the Python page run."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from segstore.cli.serving import announcement, pointers
from segstore.wire.endpoint import Endpoint

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"


def page(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def blocks(name: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page(name), re.DOTALL | re.MULTILINE)


def test_a_newcomer_reads_in_the_guide_what_serve_says() -> None:
    listening = {"segment_store": Endpoint("127.0.0.1", 12345), "controller": Endpoint("127.0.0.1", 9090)}
    said = [announcement(listening, "text"), pointers("127.0.0.1:9090", tls=False, passwords=False)]
    assert "\n".join(said) + "\n" in blocks("start/server.md", "text")


def serve(*options: str) -> subprocess.Popen[str]:
    ports = ("--port", "0", "--controller-port", "0")
    return subprocess.Popen(
        [sys.executable, "-m", "segstore", "serve", *ports, *options],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_serve_says_one_line_on_stdout_and_the_pointers_on_stderr() -> None:
    with serve() as process:
        try:
            line = process.stdout.readline()
            (controller,) = re.findall(r"controller (\S+)", line)
            expected = pointers(controller, tls=False, passwords=False).splitlines(keepends=True)
            expected[-1] += "\n"
            assert [process.stderr.readline() for _ in expected] == expected
        finally:
            process.terminate()
        assert process.stdout.read() == ""
        (memory,) = process.stderr.read().splitlines()
        assert re.fullmatch(r"Memory for stored data: at most \d+ MiB \(--max-memory\); .*", memory)
    assert process.returncode == 0


@pytest.fixture
def controller() -> Iterator[str]:
    with serve("--announce", "json") as process:
        try:
            yield json.loads(process.stdout.readline())["controller"]
        finally:
            process.terminate()


@pytest.mark.needs("pravega in this Python")
def test_the_programs_of_the_python_page_run_one_after_the_other(controller: str, tmp_path: Path) -> None:
    programs = blocks("how-to/official-python-client.md", "python")
    assert len(programs) == 5
    for number, source in enumerate(programs):
        program = tmp_path / f"program{number}.py"
        program.write_text(source.replace("127.0.0.1:9090", controller), encoding="utf-8")
        done = subprocess.run(
            [sys.executable, program], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
        )
        assert (done.returncode, done.stderr) == (0, ""), f"program {number}: {done.stdout}{done.stderr}"
