"""`segstore replay` on the command line, and what `send` and `explore` share with it."""

import json
import signal
import socket
import subprocess
import sys
from contextlib import AbstractContextManager
from pathlib import Path

import grpc
import httpx
import pytest

from segstore.traces import write_trace
from segstore.wire import encode
from segstore.wire.controller_api import METHODS
from segstore.wire.trace import Metadata
from tests.processes import invoke, started
from tests.server.support import HELLO, SEGMENT, create, set_up
from tests.server.traffic import dialogue


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return dialogue(tmp_path)


def replaying(trace: Path, *options: str) -> AbstractContextManager[tuple[subprocess.Popen[str], str]]:
    """A running `segstore replay`, and its announcement."""
    return started([sys.executable, "-m", "segstore", "replay", str(trace), "--port", "0", *options])


def test_calls_of_a_trace_are_answered_and_what_is_no_call_is_reported(trace: Path) -> None:
    lines = [
        '{"at_ns": 9, "conn": 0, "dir": "request", "rpc": "createScope", "call": 1, "fields": {"scope": "a"}}',
        '{"at_ns": 9, "conn": 0, "dir": "reply", "rpc": "createScope", "call": 1, "status": "ABORTED", "details": "x"}',
        '{"at_ns": 9, "conn": 0, "dir": "request", "rpc": "listScopes", "call": 2}',
        '{"at_ns": 9, "conn": 0, "dir": "request", "rpc": "makeTea", "call": 3}',
    ]
    trace.write_text(trace.read_text() + "\n".join(lines) + "\n")
    with replaying(trace, "--controller-port", "0", "--mode", "match") as (process, line):
        controller = line.rpartition(", controller ")[2].strip()
        with grpc.insecure_channel(controller) as channel:
            method = METHODS["createScope"]
            ask = channel.unary_unary(method.path, request_serializer=method.request.SerializeToString)
            codes = []
            for name in ("a", "b"):
                with pytest.raises(grpc.RpcError) as caught:
                    ask(method.request(scope=name), timeout=20)
                codes.append(caught.value.code().name)  # type: ignore[attr-defined]  # it is a call, too
        assert codes == ["ABORTED", "INVALID_ARGUMENT"]
        process.send_signal(signal.SIGTERM)
        out, said = process.communicate(timeout=20)
    assert process.returncode == 1
    assert out.splitlines() == [
        "controller: createScope is not in the trace",
        "  near: call 1 of the trace, answered before: scope: 'b' here, 'a' in the trace",
    ]
    assert "records of controller calls left out: 1; record 8: the controller has no method 'makeTea'" in said
    assert "1 × listScopes of the trace was not requested" in said
    assert "  call 2: listScopes" in said


def test_a_trace_is_served_and_what_was_not_asked_is_said(trace: Path) -> None:
    with replaying(trace) as (process, line):
        where = line.removeprefix("segstore listens: segment store ").strip()
        result = invoke("send", trace, "--to", where)
        process.send_signal(signal.SIGTERM)
        out, said = process.communicate(timeout=20)
    assert result.exit_code == 0
    assert (process.returncode, out, said) == (0, "", "")


def test_a_trace_without_hello_sends_one_and_a_problem_is_printed_while_it_answers(trace: Path) -> None:
    lines = [line for line in trace.read_text().splitlines(keepends=True) if "HELLO" not in line]
    trace.write_text("".join(lines))
    with replaying(trace) as (process, line):
        port = line.rpartition(":")[2]
        with socket.create_connection(("127.0.0.1", int(port)), 20) as client, client.makefile("rb") as heard:
            client.sendall(encode(HELLO))
            assert heard.read(16) == encode(HELLO)
            client.sendall(encode(set_up()))
            expected = "connection 1: SETUP_APPEND came where CREATE_SEGMENT comes in the trace\n"
            assert process.stdout.readline() == expected
        process.send_signal(signal.SIGTERM)
        out, said = process.communicate(timeout=20)
    assert (process.returncode, out) == (1, "")
    fields = f"segment={SEGMENT} scale_type=0 target_rate=0 rollover_size_bytes=0"
    assert said.splitlines() == [
        "1 × CREATE_SEGMENT of the trace was not requested",
        f"  request 1 (connection 1): CREATE_SEGMENT {fields}",
    ]


def test_problems_of_a_replay_are_listed_by_its_http_port(trace: Path) -> None:
    ports = ("--controller-port", "0", "--http-port", "0", "--announce", "json")
    with replaying(trace, *ports, "--mode", "match", "--missing", "close") as (process, line):
        addresses = json.loads(line)
        url, (host, _, port) = f"http://{addresses['http']}/", addresses["segment_store"].partition(":")
        assert addresses["controller"].startswith(f"{host}:")
        assert (addresses["admin"], addresses["rest"]) == (None, None)
        assert httpx.get(f"{url}v1/health").json() == {"status": "ok", "stores": 0, "controller": True}
        with socket.create_connection((host, int(port)), 20) as client, client.makefile("rb") as heard:
            client.sendall(encode(HELLO) + encode(set_up()))
            assert heard.read() == encode(HELLO)
        with socket.create_connection((host, int(port)), 20) as client, client.makefile("rb") as heard:
            client.sendall(encode(HELLO) + encode(create("scope/stream/1")))
            assert heard.read() == encode(HELLO)
        listed = invoke("ctl", "--url", url, "problems")
        process.send_signal(signal.SIGTERM)
        said, problems = process.communicate(timeout=20)
        assert process.returncode == 1
    assert said == "", "problems are no part of the output"
    assert "connection 1: SETUP_APPEND is not in the trace" in problems
    assert listed.output.splitlines() == [
        "1: connection 1: SETUP_APPEND is not in the trace",
        "2: connection 2: CREATE_SEGMENT is not in the trace",
        f"  near: request 2 of the trace (connection 1): segment: 'scope/stream/1' here, '{SEGMENT}' in the trace",
    ]


def test_a_replay_whose_output_is_closed_ends_and_cuts_no_client_before(trace: Path) -> None:
    with replaying(trace) as (process, line):
        port = line.rpartition(":")[2]
        process.stdout.close()
        with socket.create_connection(("127.0.0.1", int(port)), 20) as client, client.makefile("rb") as heard:
            client.sendall(encode(HELLO))
            assert heard.read(16) == encode(HELLO)
            client.sendall(encode(set_up()))  # a problem
            assert process.wait(20) == 1
        assert "Traceback" not in process.stderr.read()


def test_what_of_a_client_does_not_decode_is_said(trace: Path) -> None:
    line = '{"at_ns": 9, "conn": 1, "dir": "request", "hex": "0000001e00000003616263"}\n'
    trace.write_text(trace.read_text() + line)
    with replaying(trace) as (process, _):
        process.send_signal(signal.SIGTERM)
        said = process.communicate(timeout=20)[1]
    expected = "records of clients left out: 1; on connection 1: "
    assert said.startswith(expected)
    assert invoke("explore", trace).stderr.startswith(expected)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--pace", "fast"], "'fast' is neither max nor recorded nor a factor such as 2.5"),
        (["--pace", "1e-300"], "pace must be from 0.001 to 1,000,000, not 1e-300"),
        (["--missing", "pass", "--port", "0"], "--missing pass and --upstream HOST:PORT go together"),
        (
            ["--upstream-controller", "127.0.0.1:1", "--port", "0", "--controller-port", "0"],
            "--upstream-controller goes with --missing pass and --controller-port",
        ),
    ],
)
def test_options_that_contradict_are_refused_in_a_sentence(trace: Path, arguments: list[str], says: str) -> None:
    result = invoke("replay", trace, *arguments)
    assert (result.exit_code, len(result.output.splitlines())) == (2, 1)
    assert says in result.output


@pytest.mark.parametrize("command", [["send", "--to", "127.0.0.1:1"], ["replay", "--port", "0"], ["explore"]])
def test_a_trace_without_requests_is_no_script(tmp_path: Path, command: list[str]) -> None:
    empty = tmp_path / "empty.jsonl"
    write_trace(empty, [], Metadata)
    result = invoke(*command, empty)
    assert (result.exit_code, result.output) == (1, f"segstore: {empty}: there is no request in it\n")
