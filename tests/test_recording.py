"""Recordings: the ending decides the form, for `serve`, `tap` and test servers alike, and `-` is standard output."""

import io
import json
import socket
import subprocess
from pathlib import Path

import pytest

from segstore.testing import ServerThread
from segstore.traces import Recording, TraceFile, UnknownSuffix
from segstore.wire import Hello, SealSegment, encode
from segstore.wire.trace import Direction, Metadata, read_lines
from tests.processes import invoke
from tests.test_serving import PATIENCE_S, SERVE, served

HELLO = encode(Hello(17, 5))
SEAL = encode(SealSegment(1, "s/t/0", "secret"))
FORMS = {".wtrace": "capture", ".jsonl": "fixture", ".pcapng": "packets"}


def recording(path: Path, *, record_tokens: bool = False) -> Recording:
    return Recording(path, Metadata(17, "test"), record_tokens=record_tokens)


def a_connection(made: Recording) -> None:
    number = made.recorder.opened(peer="127.0.0.1:4711", store="127.0.0.1:12345")
    made.recorder.received(number, HELLO)
    made.recorder.sent(number, [HELLO])
    made.recorder.received(number, SEAL)
    made.recorder.closed(number, Direction.REPLY)


@pytest.mark.parametrize("ending", FORMS)
def test_the_ending_decides_the_form(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"run{ending}"
    made = recording(path)
    a_connection(made)
    made.close()
    made.close()
    with TraceFile(path) as trace:
        records = list(trace.records())
    assert trace.form == FORMS[ending]
    assert [record.kind.name for record in records] == ["OPEN", "FRAME", "FRAME", "FRAME", "CLOSE"]
    assert b"secret" not in path.read_bytes()
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("name", ["run.json", "run", "run.wtrace.gz", ".wtrace"])
def test_another_ending_is_refused_with_those_that_are_known(tmp_path: Path, name: str) -> None:
    with pytest.raises(UnknownSuffix, match=r"\.wtrace .*, \.jsonl .* or \.pcapng"):
        recording(tmp_path / name)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("ending", FORMS)
def test_a_file_is_never_replaced_and_an_empty_one_kept_on_request(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"run{ending}"
    recording(path).close(keep_empty=False)
    assert list(tmp_path.iterdir()) == []
    recording(path).close()
    with pytest.raises(FileExistsError, match="never overwrites"):
        recording(path)


def test_standard_output_gets_the_lines_of_a_fixture(capsys: pytest.CaptureFixture[str]) -> None:
    made = recording(Path("-"))
    a_connection(made)
    a_connection(made)
    made.close()
    header, *records = read_lines(capsys.readouterr().out.splitlines())
    assert header.metadata.recorder == "test"  # type: ignore[union-attr]
    assert [each.connection for each in records] == [1] * 5 + [2] * 5  # type: ignore[union-attr]
    assert b"secret" not in b"".join(record.data for record in records)  # type: ignore[union-attr]


class Gone(io.StringIO):
    """A standard output whose reader has gone."""

    def flush(self) -> None:
        raise BrokenPipeError(32, "Broken pipe")


def test_a_standard_output_that_is_gone_ends_the_recording_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("sys.stdout", Gone())
    made = recording(Path("-"))
    a_connection(made)
    with pytest.raises(BrokenPipeError):
        made.close()
    assert "recording to standard output has ended: [Errno 32] Broken pipe" in caplog.text


def test_a_server_of_tests_follows_the_same_rule(tmp_path: Path) -> None:
    with ServerThread() as thread:
        server = thread.serve(record=tmp_path / "run.jsonl")
        server.stop()
        with pytest.raises(UnknownSuffix):
            thread.serve(record=tmp_path / "run.txt")
        thread.serve(record=f"{tmp_path}/text.jsonl").stop()
        thread.tap(store="127.0.0.1:1", record=f"{tmp_path}/tap.jsonl").stop()
    assert (tmp_path / "text.jsonl").read_text().startswith('{"segstore_trace"')
    assert (tmp_path / "tap.jsonl").read_text().startswith('{"segstore_trace"')
    assert (tmp_path / "run.jsonl").read_text().startswith('{"segstore_trace"')


def say_hello(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as peer:
        peer.sendall(HELLO)
        assert peer.recv(4096) == HELLO


def port_of(announced: str) -> int:
    return int(json.loads(announced)["segment_store"].rpartition(":")[2])


def test_serve_announces_itself_on_standard_error_if_it_records_to_standard_output() -> None:
    command = [*SERVE, "--announce", "json", "--record", "-"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        say_hello(port_of(process.stderr.readline()))
        process.terminate()
        out, _ = process.communicate(timeout=PATIENCE_S)
    assert [json.loads(line).get("type") for line in out.splitlines()] == [None, None, "HELLO", "HELLO", None]


def test_serve_records_what_clients_did_and_never_over_another_file(tmp_path: Path) -> None:
    path = tmp_path / "a.wtrace"
    with served("--announce", "json", "--record", str(path)) as store:
        with store.connect() as peer:
            peer.sendall(HELLO + encode(SealSegment(1, "scope/none/0", "secret")) + b"\0\0")
            received = b""
            while b"scope/none/0" not in received:
                received += peer.recv(4096)
        assert store.end() == 0
    lines = [line.split(maxsplit=3)[1:] for line in invoke("trace", "show", path).stdout.splitlines()]
    assert [line[:2] for line in lines] == [["#1", way] for way in ">>><<>>"]
    said = [line[2].split()[0] for line in lines]
    assert said == ["opened", "HELLO", "SEAL_SEGMENT", "HELLO", "NO_SUCH_SEGMENT", "2", "closed"]
    assert "recorded by segstore " in invoke("trace", "stats", path).stdout
    before = path.read_bytes()
    assert b"secret" not in before
    refused = subprocess.run(
        [*SERVE, "--record", str(path)], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert refused.returncode == 1
    assert "never overwrites a file" in refused.stderr
    assert path.read_bytes() == before


def test_serve_keeps_tokens_in_a_recording_if_they_are_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "a.wtrace"
    with served("--announce", "json", "--record", str(path), "--record-tokens") as store:
        with store.connect() as peer:
            peer.sendall(HELLO + encode(SealSegment(1, "scope/none/0", "secret")))
            while b"scope/none/0" not in peer.recv(4096):
                pass
        assert store.end() == 0
    assert "delegation_token=<6 characters>" in invoke("trace", "show", path).stdout
    assert b"secret" in path.read_bytes()
    assert path.stat().st_mode & 0o777 == 0o600
