"""`segstore send` on the command line, as far as it goes without Spark."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from segstore.cli.traces.send import send_part
from segstore.testing import ServerThread
from segstore.traces import TraceFile
from tests.processes import invoke
from tests.server.traffic import dialogue

RECORDED = Path(__file__).parent.parent / "fixtures" / "traces"


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return dialogue(tmp_path)


@pytest.fixture
def served() -> Iterator[tuple[str, str]]:
    """A store and its controller: host:port of each."""
    with ServerThread() as servers:
        server = servers.serve()
        yield f"{server.host}:{server.port}", server.controller_uri


@pytest.fixture
def store(served: tuple[str, str]) -> str:
    return served[0]


def test_a_store_that_answers_as_in_the_trace_is_no_difference(trace: Path, store: str) -> None:
    result = invoke("send", trace, "--to", store)
    assert (result.exit_code, result.stdout) == (0, "")
    assert "2 requests, 2 replies, 0 differ" in result.stderr


def test_calls_are_made_to_a_controller_or_their_number_and_the_option_are_printed(
    trace: Path, served: tuple[str, str]
) -> None:
    store, controller = served
    lines = [
        '{"at_ns": 9, "conn": 0, "dir": "request", "rpc": "createScope", "call": 1, "fields": {"scope": "a"}}',
        '{"at_ns": 9, "conn": 0, "dir": "reply", "rpc": "createScope", "call": 1, "status": "OK"}',
        '{"at_ns": 9, "conn": 0, "dir": "request", "rpc": "makeTea", "call": 2}',
    ]
    calls = trace.with_name("calls.jsonl")
    calls.write_text(trace.read_text().splitlines()[0] + "\n" + "\n".join(lines) + "\n")
    trace.write_text(trace.read_text() + "\n".join(lines) + "\n")
    left_out = "controller calls left out: 2; --to-controller HOST:PORT makes them"
    found = invoke("send", trace, "--to", store)
    assert (found.exit_code, found.stderr.splitlines()) == (0, [left_out, "2 requests, 2 replies, 0 differ"])
    no_call = "records of controller calls left out: 1; record 3: the controller has no method 'makeTea'"
    for difference in (0, 1):
        found = invoke("send", calls, "--to", store, "--to-controller", controller)
        summary = f"0 requests, 0 replies, 1 controller calls, {difference} differ"
        assert (found.exit_code, found.stderr.splitlines()) == (difference, [no_call, summary])
    assert "SCOPE_EXISTS came instead of OK" in found.stdout


def test_a_warning_names_credentials_that_are_sent_without_tls(
    trace: Path, served: tuple[str, str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    to = ("send", trace, "--to", served[0], "--to-controller")
    assert invoke(*to, "controller.invalid:1").exit_code == 0
    monkeypatch.setenv("SEGSTORE_CLIENT_USERNAME", "ann")
    monkeypatch.setenv("SEGSTORE_CLIENT_PASSWORD", "secret")
    invoke(*to, served[1])
    assert caplog.messages == []
    invoke(*to, "controller.invalid:1")
    assert caplog.messages == [
        "credentials are sent to controller controller.invalid:1 unencrypted; tls:// encrypts them"
    ]


def test_a_difference_is_printed_with_field_and_bytes(trace: Path, store: str) -> None:
    trace.write_text(trace.read_text().replace('"high_version": 17', '"high_version": 16'))
    result = invoke("send", trace, "--to", store)
    assert result.exit_code == 1
    assert "the reply to HELLO, HELLO: high_version is 17 instead of 16" in result.stdout
    assert "in the trace:" in result.stdout
    assert "the server's:" in result.stdout


def test_two_stores_are_compared_and_one_that_is_not_empty_is_hinted_at(trace: Path, store: str) -> None:
    # By another name, for it is the same store, in which the second time the segment is there.
    result = invoke("send", trace, "--to", store, "--against", store.replace("127.0.0.1", "localhost"))
    assert result.exit_code == 1
    said = (
        "SEGMENT_ALREADY_EXISTS came instead of SEGMENT_CREATED; a store is to be empty at the start, or it answers so"
    )
    assert said in result.stdout


TO = ["--to", "127.0.0.1:1"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "Missing option '--to'"),
        (["--to", "nowhere"], "'nowhere' is no HOST:PORT"),
        (["--to", "http://127.0.0.1:1"], "http:// is neither tls:// nor tcp://"),
        ([*TO, "--ca", "TRACE"], "--ca goes with --to tls://HOST:PORT"),
        (
            ["--to", "tls://127.0.0.1:1", "--to-controller", "127.0.0.1:2"],
            "--to and --to-controller: either both speak TLS or none",
        ),
        ([*TO, "--ignore", "last_modifed"], "no command or call has a field 'last_modifed' (last_modified?)"),
        ([*TO, "TRACE"], "several traces go with --parts"),
        ([*TO, "--master", "local[1]"], "--master goes with --parts"),
        ([*TO, "--parts", "2", "--pace", "1"], "--parts does not go with --pace"),
        ([*TO, "--against", "127.0.0.1:2", "--all"], "--against does not go with --all"),
        (["--to", "tls://127.0.0.1:1", "--parts", "2"], "tls:// goes neither with --parts"),
        ([*TO, "--port", "0"], "No such option '--port'"),
    ],
)
def test_options_that_contradict_are_refused_in_a_sentence(trace: Path, arguments: list[str], says: str) -> None:
    result = invoke("send", trace, *(str(trace) if argument == "TRACE" else argument for argument in arguments))
    assert (result.exit_code, len(result.output.splitlines())) == (2, 1)
    assert says in result.output


def test_a_part_is_sent_to_a_store_and_its_replies_compared() -> None:
    with TraceFile(RECORDED / "write.jsonl") as trace:
        records = list(trace.records())
    with ServerThread() as servers:
        server = servers.serve()
        again = send_part(server.host, server.port, 10.0, frozenset({"last_modified"}), 3, records)
        twice = send_part(server.host, server.port, 10.0, frozenset({"last_modified"}), 3, records)
    assert (again.part, again.different, again.error) == (3, 0, None)
    assert again.requests > 10
    assert twice.different > 0
    assert "SEGMENT_ALREADY_EXISTS came instead of SEGMENT_CREATED" in twice.differences[0]
    with pytest.raises(OSError, match="127"):
        send_part("127.0.0.1", 1, 1.0, frozenset(), 0, records)
