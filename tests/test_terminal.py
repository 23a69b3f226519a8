"""Text from files and peers reaches the terminal on one line, without control characters."""

import io
import json
import logging
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest
from click import unstyle

from segstore import tap as tapping
from segstore.cli.terminal import LogFormatter
from segstore.wire import (
    CreateSegment,
    ErrorMessage,
    ErrorMessageCode,
    Hello,
    NoSuchSegment,
    ReadSegment,
    SegmentRead,
    encode,
)
from segstore.wire.controller_api import SERVICE
from segstore.wire.controller_api import messages as m
from segstore.wire.inspect import to_line
from segstore.wire.trace import Direction, Metadata, Record, RecordKind, event_data
from tests.processes import invoke
from tests.server.support import append, create, set_up
from tests.test_serving import served
from tests.wire.trace.traces import capture, record

HOSTILE = "\x1b]0;owned\x07\x1b[31m\x9b2J\x7f\r\u202egnp.exe\u2066\u200b\u2028\U000e0041"
"""Escape sequences of both kinds, direction marks, zero-width characters, line ends."""
NAME = f"scope/{HOSTILE}\n/0.#epoch.0"
SURROGATE = "\ud800"
LONG = "x" * 65_000


def records() -> list[Record]:
    said = [
        record(Hello(17, 5)),
        record(Hello(17, 5), at=1, reply=True),
        record(ReadSegment(NAME, 0, 100, HOSTILE, 7), at=2),
        record(SegmentRead(NAME, 0, False, True, HOSTILE.encode(), 7), at=3, reply=True),
        record(CreateSegment(8, f"scope/{SURROGATE}/0.#epoch.0", 0, 0, HOSTILE, 1024), at=4),
        record(ErrorMessage(8, NAME, f"{HOSTILE}\n{SURROGATE}", ErrorMessageCode.UNSPECIFIED), at=5, reply=True),
        record(b"\x1b[31m\r", at=5, kind=RecordKind.BYTES, reply=True),
    ]
    opened = Record(0, 1, Direction.REQUEST, RecordKind.OPEN, event_data(**{HOSTILE: f"{HOSTILE}\n"}))
    closed = Record(6, 1, Direction.REPLY, RecordKind.CLOSE, b'{"' + HOSTILE.encode() + b'": 1}')
    return [opened, *said, closed]


def clean(shown: str) -> None:
    assert all(line.isprintable() for line in shown.split("\n")), shown


def run(*arguments: object) -> str:
    """The output of a command; asserts that it is clean, whatever the exit status."""
    output = invoke(*arguments).output
    clean(output)
    return output


@pytest.fixture
def traces(tmp_path: Path) -> list[Path]:
    """The same dialogue in both formats, in files with hostile names; and again with damage at the end."""
    metadata = Metadata(17, f"{HOSTILE}\n", {f"{HOSTILE}\nall agree": f"{HOSTILE}\n"})
    whole = tmp_path / f"{HOSTILE[2:]}\n.wtrace"
    whole.write_bytes(capture(records(), metadata=metadata))
    lines = tmp_path / f"{HOSTILE[2:]}\n.jsonl"
    invoke("trace", "convert", whole, lines)
    torn = tmp_path / f"torn{HOSTILE[2:]}.wtrace"
    torn.write_bytes(whole.read_bytes() + whole.read_bytes()[:40])
    broken = tmp_path / f"broken{HOSTILE[2:]}.jsonl"
    broken.write_text(lines.read_text() + json.dumps({f"{HOSTILE}\n": 1}) + "\n")
    assert all(each.stat().st_size for each in (whole, lines, torn, broken))
    return [whole, lines, torn, broken]


@pytest.mark.parametrize(
    "command", [["show"], ["show", "--json"], ["show", "--hex", "--show-tokens"], ["stats"], ["stats", "--json"]]
)
def test_traces_are_shown_clean(traces: list[Path], command: list[str]) -> None:
    for path in traces:
        shown = run("trace", *command, path)
        assert "gnp.exe" in shown
        if "--json" in command:
            assert all(isinstance(json.loads(line), dict) for line in shown.splitlines() if line.startswith("{"))


def test_traces_are_compared_cut_and_replayed_clean(traces: list[Path], tmp_path: Path) -> None:
    whole, lines, *_ = traces
    other = tmp_path / "other.wtrace"
    other.write_bytes(capture([record(ReadSegment(f"{NAME}x", 0, 100, "", 7))]))
    assert "gnp.exe" in run("trace", "diff", whole, other)
    for path in traces:
        run("trace", "filter", path, tmp_path / "out.jsonl", "-f", "type = HELLO")
        run("trace", "convert", path, tmp_path / "out.wtrace", "--redact")
        run("send", path, "--to", "127.0.0.1:1")
        run("send", path, "--to", "127.0.0.1:1", "--against", "127.0.0.1:2")
        run("explore", path, "--filter", f"segment = '{HOSTILE}' and {HOSTILE}")
        run("trace", "report", path, "-o", path)
    run("trace", "show", lines, "-f", HOSTILE)
    run("trace", "show", tmp_path / HOSTILE[2:])
    run("trace", HOSTILE)
    run("trace", "convert", whole, tmp_path / f"x.{HOSTILE[2:]}")


def test_frames_are_decoded_and_explained_clean(tmp_path: Path) -> None:
    path = tmp_path / HOSTILE[2:]
    for content in (
        b"".join(encode(each) for each in (create(NAME), ReadSegment(NAME, 0, 1, HOSTILE, 1))),
        encode(create(NAME))[:-3],
        HOSTILE.encode(),
        json.dumps({HOSTILE: 1}).encode(),
        json.dumps({"type": f"{HOSTILE}\n"}).encode(),
        to_line(create(NAME)).replace('"request_id"', json.dumps(HOSTILE)).encode(),
    ):
        path.write_bytes(content)
        for command in (["decode"], ["decode", "--json"], ["explain", "--show-tokens", "--full"], ["encode"]):
            run(*command, path)


FAULTS = [
    f"{json.dumps(HOSTILE)}: 1\n",
    f"rules:\n- {{do: ok, {json.dumps(HOSTILE)}: 1}}\n",
    f"rules:\n- do: {json.dumps(HOSTILE)}\n",
    f"rules:\n- {{do: ok, match: {json.dumps(HOSTILE)}}}\n",
    f"rules:\n- {{do: ok, name: {json.dumps(HOSTILE)}}}\n- {{do: ok, name: {json.dumps(HOSTILE)}}}\n",
    f"rules:\n- do: {{error: WrongHost, fields: {{{json.dumps(HOSTILE)}: 1}}}}\n",
    f'"{"x" * 100_000}": 1\n',
    "\x1b[31m: 1\n",
    '"\\ud800": 1\n',
]


def test_what_is_wrong_with_a_fault_file_is_said_clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tapping, "log_to_stderr", lambda level: None)  # the log of this process belongs to the tests
    for text in FAULTS:
        for suffix in (".yaml", ".json"):
            path = tmp_path / f"{HOSTILE[2:]}{suffix}"
            path.write_text(text)
            said = run("tap", "--store", "127.0.0.1:1", "--faults", path)
            assert said.startswith("segstore: ")
            assert len(said) < 3000


def logged(log: Callable[[logging.Logger], None]) -> str:
    """The log output, in the format of a server."""
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    handler.setFormatter(LogFormatter("%(levelname)s %(message)s"))
    logger = logging.Logger("terminal")  # noqa: LOG001 — a pytest report cannot carry a lone surrogate
    logger.addHandler(handler)
    log(logger)
    clean(written.getvalue())
    return written.getvalue()


def test_a_line_of_the_log_is_one_line_and_short() -> None:
    said = logged(lambda log: log.warning("%s of %s is gone: why", f"{HOSTILE}\n{SURROGATE}{LONG}", LONG))
    assert said.count("\n") == 1
    assert said.startswith("WARNING \\u001b]0;owned")
    assert "x is gone: why (1300" in said
    assert len(said) < 1300


def test_a_traceback_in_the_log_keeps_its_lines_which_are_short() -> None:
    error = ValueError(f"{HOSTILE}{SURROGATE}{LONG}")
    said = logged(lambda log: log.error("unexpected", exc_info=error))
    assert said.splitlines()[0] == "ERROR unexpected"
    assert said.splitlines()[1].startswith("ValueError: \\u001b]0;owned")
    assert len(said) < 1300


def test_the_log_of_a_server_is_clean_and_short_whatever_peers_send() -> None:
    with served("--announce", "json") as store:
        for name in (NAME, f"scope/{SURROGATE}{LONG[:60_000]}/0", LONG):
            with store.connect() as connection:
                said = (Hello(17, 5), create(name), set_up(name), append(5), append(3))
                connection.sendall(b"".join(each if isinstance(each, bytes) else encode(each) for each in said))
                while connection.recv(1 << 16):
                    pass
        assert store.end() == 0
        log = store.errors()
    clean(log)
    assert log.count("do not go backwards: 3 after 5") == 3
    assert max(map(len, log.splitlines())) < 1300


def test_colours_are_for_terminals_that_want_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.wtrace"
    path.write_bytes(capture([record(Hello(17, 5)), record(NoSuchSegment(7, "s"), reply=True)]))
    shown = {}
    for name, color, no_color in (("pipe", False, ""), ("terminal", True, ""), ("refused", True, "1")):
        monkeypatch.setenv("NO_COLOR", no_color)
        shown[name] = invoke("trace", "show", path, color=color).stdout
    assert shown["refused"] == shown["pipe"]
    assert "\x1b" not in shown["pipe"]
    hello, failure = shown["terminal"].splitlines()
    assert "\x1b" not in hello
    assert failure.startswith("\x1b[31m")
    assert unstyle(shown["terminal"]) == shown["pipe"]


def test_the_log_shows_at_debug_that_clients_come_and_go_and_nothing_of_libraries() -> None:
    with served("--announce", "json", "--log-level", "debug") as store:
        with grpc.insecure_channel(str(store.announced["controller"])) as channel:
            assert (
                channel.unary_unary(f"/{SERVICE}/createScope")(m.ScopeInfo(scope="a").SerializeToString()) is not None
            )
        with store.connect() as opened:
            peer = "{}:{}".format(*opened.getsockname())
            opened.sendall(encode(Hello(17, 5)))
            assert opened.recv(1 << 16)
        assert store.end() == 0
        errors = store.errors()
    assert " INFO draining 0 connections" in errors
    debug = [line.partition(" DEBUG ")[2] for line in errors.splitlines() if " DEBUG " in line]
    size = len(encode(Hello(17, 5)))
    assert debug == [
        "the controller is called: createScope",
        f"connection from {peer} to store 0 opened",
        f"connection from {peer} ended: {size} bytes in, {size} bytes out",
    ]
