"""`segstore explore` on the command line: commands and traces as clients, results, and what is refused."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from click.testing import Result

from segstore.explore import names_place, words_of
from segstore.traces import write_trace
from segstore.wire import Command, encode
from segstore.wire.trace import Direction, Metadata, Record, RecordKind
from tests.looped import looped
from tests.processes import invoke
from tests.server.support import HELLO, SEGMENT, append, create, set_up

WRITES: list[Command] = [HELLO, create(), set_up(), append(1), append(2)]

pytestmark = pytest.mark.usefixtures("grpc_runs")


def run(*arguments: Any) -> Result:
    return invoke("explore", *arguments)


def write(path: Path, commands: list[Command]) -> None:
    frames = enumerate(map(encode, commands))
    write_trace(path, [Record(at, 1, Direction.REQUEST, RecordKind.FRAME, data) for at, data in frames], Metadata)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "good.jsonl"
    write(path, WRITES)
    return path


@pytest.fixture
def client(tmp_path: Path) -> Path:
    """A client that never notices that it was cut off."""
    path = tmp_path / "client.py"
    frames = b"".join(map(encode, WRITES))
    path.write_text(
        "import os, socket, sys\n"
        "host, port = sys.argv[1:3] if sys.argv[2:] else (os.environ['SEGSTORE_HOST'], os.environ['SEGSTORE_PORT'])\n"
        "with socket.create_connection((host, int(port)), 5) as peer:\n"
        f"    peer.sendall(bytes.fromhex({frames.hex()!r}))\n"
        "    peer.shutdown(socket.SHUT_WR)\n"
        "    while peer.recv(4096):\n"
        "        pass\n"
        "print('done')\n"
    )
    return path


@looped(
    ("command", "named"),
    [
        ("c {controller}", True),
        ("c --at={controller}/x", True),
        ("c {{controller}}", False),
        ("c '${controller}'", False),
    ],
)
def test_a_placeholder_is_found_where_it_is_one(command: str, named: bool) -> None:
    assert names_place(words_of(command), "controller") is named


def test_what_breaks_is_reported_in_every_form(tmp_path: Path, client: Path) -> None:
    out, page, junit, known = (tmp_path / name for name in ("out", "page.html", "junit.xml", "known.json"))
    how = ("-f", "type = SETUP_APPEND", "--failures", "cut *", "--stores", 1)
    command = ("--", sys.executable, client)
    result = run(*how, "--out", out, "--page", page, "--junit", junit, "--write-baseline", known, *command)
    assert result.exit_code == 1, result.output
    assert "1 × SETUP_APPEND after CREATE_SEGMENT, stream" in result.stderr
    name = "cut before at SETUP_APPEND 1"
    assert name in result.stdout
    assert "lost: scope/stream has 0 of 8 bytes" in result.stdout
    assert f"segstore_explore(client, only={name!r}, timeout_s=10)" in result.stdout
    repeats = f"again: segstore explore --only {name!r} --stores 1 -- {sys.executable} {client}"
    assert repeats in result.stdout
    shown = invoke("trace", "show", out / "finding-1.jsonl")
    assert "SETUP_APPEND" in shown.output
    assert 'href="page.runs/finding-1.html"' in page.read_text()
    assert (tmp_path / "page.runs" / "finding-1.html").is_file()
    suite = ElementTree.parse(junit).getroot()
    assert (suite.attrib["tests"], int(suite.attrib["failures"])) == ("3", len(suite.findall("*/failure")))
    assert "lost: cut before at SETUP_APPEND after CREATE_SEGMENT, stream" in json.loads(known.read_text())
    again = run(*how, "--baseline", known, *command)
    assert again.exit_code == 0, again.output
    assert "in the baseline" in again.stdout
    only = run(*shlex.split(repeats)[3:])
    assert (only.exit_code, name in only.stdout) == (1, True)


def test_the_events_of_a_trace_must_be_stored_by_the_client(tmp_path: Path, trace: Path, client: Path) -> None:
    command = ("--", sys.executable, client, "{host}", "{port}")
    how = ("-f", "type = HELLO", "--failures", "cut before")
    assert run(trace, *how, *command).exit_code == 1
    result = run(trace, *how, "--", sys.executable, "-c", "pass")
    assert result.exit_code == 1
    assert "made no request" in result.stderr
    other = tmp_path / "other.jsonl"
    write(other, [HELLO, create(), set_up(), append(1, b"other")])
    result = run(other, *how, *command)
    assert "the client's results differ from what is wanted: lost: scope/stream lacks" in result.stderr


def test_the_requests_of_a_trace_are_made_by_a_client_that_reconnects(trace: Path) -> None:
    result = run(trace, "-f", "type = APPEND_BLOCK_END", "--failures", "cut *")
    assert (result.exit_code, result.stdout) == (0, ""), result.output
    assert "8 runs, 0 broke" in result.stderr
    assert SEGMENT not in result.stderr, "warnings of the store about the faults"


@looped(
    ("arguments", "status", "says"),
    [
        (("--prepare", "python {contoller}"), 2, "unknown placeholder {contoller}, only {host}, {port}"),
        (("--prepare", "python 'a"), 2, "the command cannot be split into words: No closing quotation"),
        (("--prepare", " "), 2, "the command is empty"),
        (("--",), 2, "the command is empty"),
        ((), 2, "give a command after --, or a TRACE"),
        (("--", "/no/such/program"), 1, "'/no/such/program' cannot be started: No such file"),
        (("--", sys.executable, "-c", "import sys; sys.exit('wrong')"), 1, "ended with status 1: wrong"),
        (("--", sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"), 1, "ended by signal 9"),
        (("--timeout-s", "0.5", "--", "sleep", "9"), 1, "does not finish within 0.5 s, even without a fault"),
        (("--", "true"), 1, "made no request: it must use {controller}, {host} and {port}"),
        (("--prepare", "false", "--", "true"), 1, "segstore: the preparation: the client ended with status 1"),
        (("--prepare", "/no/such", "--", "true"), 1, "segstore: the preparation: '/no/such' cannot be started"),
        (("--junit", "/no/such/junit.xml", "--", "true"), 2, "'--junit': /no/such is no folder"),
    ],
)
def test_what_cannot_be_explored_is_refused_in_a_sentence(arguments: tuple[str, ...], status: int, says: str) -> None:
    result = run(*arguments)
    assert (result.exit_code, len(result.output.splitlines())) == (status, 1), result.output
    assert says in result.output


@looped(
    ("options", "says"),
    [
        (("--page", "m.html"), "--page: m.runs, for its runs, is no folder"),
        (("--page", "n", "--junit", "n"), "--junit: n is another output, too"),
        (("--page", "n.html", "--write-baseline", "n.runs"), "--write-baseline: n.runs is another output, too"),
        (("--page", "n.runs"), "--page: n.runs is another output, too"),
        (("--junit", "x", "--write-baseline", "./x"), "--write-baseline: x is another output, too"),
    ],
)
def test_outputs_that_clash_are_refused_before_the_runs(
    options: tuple[str, ...], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.runs").touch()
    result = run(*options, "--", "/no/such/program")
    assert (result.exit_code, says in result.output) == (2, True), result.output


@looped("option", [("--tokens",), ("--stores", 3)])
def test_a_trace_goes_to_one_store_that_checks_no_tokens(option: tuple[str, ...], trace: Path) -> None:
    result = run(trace, *option)
    assert (result.exit_code, "--tokens and --stores need a command" in result.output) == (2, True)


def test_the_last_panic_is_quoted_beside_what_else_broke(tmp_path: Path, client: Path) -> None:
    panics = "for thread in 1 2; do echo thread $thread panicked at a.rs:7: >&2; echo no such key >&2; done"
    quoted = "thread 2 panicked at a.rs:7: no such key"
    how = ("--stores", 1, "-f", "type = SETUP_APPEND", "--failures", "cut before", "--", "sh", "-c")
    result = run(*how, f"{sys.executable} {client}; {panics}")
    assert f"lost: scope/stream has 0 of 8 bytes; its standard error has: {quoted}" in result.stdout
    result = run("--", "sh", "-c", f"{panics}; exit 3")
    assert result.stderr.endswith(f"the client ended with status 3: {quoted}\n")


def test_a_command_gets_no_input_and_its_processes_end_with_it(tmp_path: Path, client: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text(f"cat; sleep 100 & exec {sys.executable} {client}\n")
    result = run("--stores", 1, "-f", "type = HELLO", "--failures", "reply twice", "--", "sh", script)
    assert result.exit_code == 0, result.output
    assert "leaves processes behind" in result.stderr


def test_a_pattern_that_selects_no_failure_is_refused(trace: Path) -> None:
    result = run(trace, "--failures", "cut *", "--failures", "cuts *")
    assert result.exit_code == 1
    assert "no failure at any request or call of the client has a name like 'cuts *'" in result.stderr
    result = run(trace, "-f", "rpc = createScope", "--failures", "cut *")
    assert result.exit_code == 1
    assert "that matches 'rpc = createScope' has a failure like ['cut *']" in result.stderr
    result = run(trace, "--failures", "cut *", "--budget", "1e-9")
    assert "budget ended before" in result.stderr


def test_a_signal_ends_the_processes_of_the_client(tmp_path: Path) -> None:
    number = tmp_path / "pid"
    words = ["explore", "--", "sh", "-c", f"echo $$ > {number}; exec sleep 100"]
    process = subprocess.Popen([sys.executable, "-m", "segstore", *words])
    until_s = time.monotonic() + 60
    while not (number.exists() and number.read_text().endswith("\n")):
        assert time.monotonic() < until_s
        time.sleep(0.05)
    process.terminate()
    assert process.wait(60) == 128 + signal.SIGTERM
    with pytest.raises(ProcessLookupError):
        os.kill(int(number.read_text()), 0)


def test_findings_are_not_written_over_the_trace_that_is_explored(trace: Path, tmp_path: Path) -> None:
    path = tmp_path / "finding-1.jsonl"
    path.write_bytes(before := trace.read_bytes())
    result = run(path, "--out", tmp_path)
    assert result.exit_code == 2
    assert f"{tmp_path} contains {path}, which is being read" in result.stderr
    assert path.read_bytes() == before
