"""`segstore serve` as a process: what it announces, how it ends, what it says when it cannot begin."""

import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import jwt
import pytest

from segstore.cli import serving
from segstore.cli.serving import announcement
from segstore.cli.settings import ServeSettings, read_settings
from segstore.server.auth import Permission
from segstore.server.controller import ControllerConfig
from segstore.server.controller.config import AutoScaling
from segstore.wire import Command, CreateSegment, FrameDecoder, Hello, KeepAlive, WrongHost, encode
from segstore.wire.endpoint import Endpoint
from tests.looped import looped
from tests.ports import held_port
from tests.processes import PATIENCE_S, Running, refusal, refusal_here, started
from tests.server.certificates import write_certificate
from tests.server.support import append, create, read, set_up

SERVE = (sys.executable, "-m", "segstore", "serve", "--port", "0", "--controller-port", "0")


class Served(Running):
    """A running `segstore serve`."""

    def connect(self, part: str = "segment_store") -> socket.socket:
        host, port = str(self.announced[part]).rsplit(":", 1)
        return socket.create_connection((host, int(port)), timeout=PATIENCE_S)

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(PATIENCE_S)

    def errors(self) -> str:
        return self.process.stderr.read()


@contextmanager
def served(*options: str, command: Sequence[str] = SERVE) -> Iterator[Served]:
    with started([*command, *options]) as (process, line):
        yield Served(process, line)


def refused(*options: str) -> tuple[int, str]:
    return refusal([*SERVE, *options])


def ask(connection: socket.socket, *commands: Command, count: int) -> list[type[Command]]:
    connection.sendall(b"".join(encode(command) for command in commands))
    decoder = FrameDecoder()
    answers: list[type[Command]] = []
    while len(answers) < count:
        data = connection.recv(1 << 16)
        assert data
        answers += [type(each) for each in decoder.feed(data)]
    return answers


def test_too_few_descriptors_for_any_connection_are_one_sentence_and_status_1() -> None:
    status, complaint = refusal(["sh", "-c", f"ulimit -n 40; exec {shlex.join(SERVE)}"])
    assert status == 1
    assert complaint.strip() == (
        "segstore: at most 40 connections and files can be open at a time, and at least 64 are needed; "
        "raise the limit (ulimit -n)"
    )


def test_the_announcement_as_text_is_one_line_of_what_listens() -> None:
    addresses = {
        "segment_store": Endpoint("127.0.0.1", 5),
        "controller": None,
        "admin": Endpoint("::1", 6),
        "http": Endpoint("127.0.0.1", 7),
        "rest": Endpoint("127.0.0.1", 8),
    }
    expected = "segstore listens: segment store 127.0.0.1:5, admin [::1]:6, http http://127.0.0.1:7/, rest "
    assert announcement(addresses, "text") == f"{expected}http://127.0.0.1:8/"
    assert announcement(addresses, "text", tls=True) == f"{expected}https://127.0.0.1:8/"


def test_json_is_announced_with_exactly_the_promised_keys_once_all_listen() -> None:
    with served("--announce", "json", "--admin-port", "0") as store:
        assert list(store.announced) == ["segment_store", "controller", "admin", "http", "rest"]
        assert store.announced["http"] is None
        for part in ("segment_store", "admin"):
            store.connect(part).close()
        assert store.end() == 0
        assert store.errors() == ""


@looped("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_drains_and_ends_with_status_0(number: signal.Signals) -> None:
    with served("--announce", "json") as store, store.connect() as connection:
        assert ask(connection, Hello(17, 5), create(), set_up(), append(0), count=4)
        connection.sendall(encode(read(4)))  # one that waits at the tail
        assert ask(connection, KeepAlive(), count=1) == [KeepAlive]
        assert store.end(number) == 0
        assert connection.recv(1) == b""
        assert "Traceback" not in store.errors()


NEVER_STARTED = """
import asyncio, sys
from segstore.cli import serving
from segstore.cli.settings import ServeSettings

class Waiting:
    stores = ()

    async def __aenter__(self):
        print("starting", flush=True)
        await asyncio.Event().wait()

    async def __aexit__(self, *_):
        raise AssertionError("what did not start is not ended")

serving._cluster = lambda settings: Waiting()
serving.serve(ServeSettings())
print("ended")
"""


def test_a_signal_ends_a_start_that_waits_for_others() -> None:
    process = subprocess.Popen([sys.executable, "-c", NEVER_STARTED], stdout=subprocess.PIPE, text=True)
    with process:
        try:
            assert process.stdout.readline() == "starting\n"
            process.send_signal(signal.SIGINT)
            assert process.wait(PATIENCE_S) == 0
            assert process.stdout.read() == "ended\n"
        finally:
            process.kill()


def test_a_second_signal_ends_it_at_once() -> None:
    size = 2 * 1024 * 1024
    with served("--announce", "json") as store, store.connect() as connection:
        ask(connection, Hello(17, 5), create(), set_up(), append(0, bytes(size)), count=4)
        connection.sendall(b"".join(encode(read(0, size, each)) for each in range(20)))
        connection.recv(1)
        store.process.send_signal(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            store.process.wait(0.2)  # it waits for a peer that does not read
        assert store.end() == 128 + signal.SIGTERM
        assert "Traceback" not in store.errors()


def break_the_protocol(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as peer:
        peer.sendall(bytes(8))
        assert peer.recv(1) == b""


def test_a_server_waits_for_no_reader_of_its_output() -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with suppress(BlockingIOError):
        while os.write(writer, bytes(4096)):
            pass
    os.set_blocking(writer, True)
    with held_port() as port:
        command = [sys.executable, "-m", *f"segstore serve --port {port} --controller-port 0 --record -".split()]
        with subprocess.Popen(command, stdout=writer, stderr=writer) as process:
            try:
                until = time.monotonic() + PATIENCE_S
                while time.monotonic() < until:
                    with suppress(ConnectionRefusedError):
                        break_the_protocol(port)
                        break
                break_the_protocol(port)
                process.terminate()
                assert process.wait(PATIENCE_S) == 1
            finally:
                process.kill()
                os.close(reader)
                os.close(writer)


def test_what_nobody_reads_is_dropped_and_its_lines_are_counted() -> None:
    program = (
        "import sys; from segstore import outputs; outputs._MOST_QUEUED_BYTES = 100_000; outputs.never_wait();"
        "[print('x' * 99, file=sys.stderr) for _ in range(5_000)]; print('written', flush=True); sys.stdin.read()"
    )
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", program], stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout.readline() == "written\n"
        lines = process.communicate(timeout=PATIENCE_S)[1].splitlines()
    dropped = [int(line.split()[0]) for line in lines if line != "x" * 99]
    assert dropped
    assert len(lines) - len(dropped) + sum(dropped) == 5_000
    assert process.returncode == 0


def test_without_standard_error_it_serves_and_the_announced_text_is_one_line() -> None:
    with served(command=("sh", "-c", f"exec {shlex.join(SERVE)} 2>&-")) as store:
        assert store.line.startswith("segstore listens: segment store 127.0.0.1:")
        assert store.end() == 0
        assert store.process.stdout.read() == ""


def test_a_taken_port_is_one_sentence_and_status_1_and_leaves_no_recording(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        status, complaint = refused("--controller-port", str(port), "--record", str(tmp_path / "run.wtrace"))
    assert (status, complaint.count("\n")) == (1, 1)
    assert f"port {port} on 127.0.0.1, for the controller, is taken by another process" in complaint
    assert "choose another with --controller-port" in complaint
    assert list(tmp_path.iterdir()) == []


@looped("ttl_s", [None, 8, -1])
def test_delegation_tokens_are_good_for_as_long_as_is_said(ttl_s: int | None) -> None:
    given = {} if ttl_s is None else {"token_ttl_s": str(ttl_s)}
    settings = read_settings({"auth_key": "k" * 64, "open_controller": True, **given}, {}, None)
    cluster: Any = serving._cluster(settings)
    token = cluster._authority.token("prn::/scope:a", Permission.READ)
    claims = jwt.decode(token, options={"verify_signature": False})
    assert claims.get("exp") == (None if ttl_s == -1 else claims["iat"] + (ttl_s or 600))


def test_the_controller_has_the_settings_of_its_file_but_for_what_options_say(tmp_path: Path) -> None:
    path = tmp_path / "controller.toml"
    path.write_text("commit_delay_ms = 5\nscale_delay_ms = 6\nlease_cap_ms = 7\n[scaling]\ntick_ms = 8\n")
    given = {"controller_config": str(path), "scale_delay_ms": "0", "lease_cap_ms": "9"}
    settings = read_settings(given, {}, None).cluster.controller
    expected = ControllerConfig(commit_delay_ms=5, lease_cap_ms=9, scaling=AutoScaling(tick_ms=8))
    assert settings == expected
    assert read_settings({"commit_delay_ms": "3"}, {}, None).cluster.controller == ControllerConfig(commit_delay_ms=3)


def test_a_file_that_has_no_settings_of_a_controller_is_one_sentence_and_status_2(tmp_path: Path) -> None:
    path = tmp_path / "controller.toml"
    path.write_text("page_sise = 5")
    status, complaint = refusal_here("serve", "--controller-config", str(path))
    assert status == 2
    assert f"{path}: page_sise: there is no such option (page_size?)" in complaint
    assert len(complaint.strip().splitlines()) == 1


@pytest.mark.parametrize("somebody_came", [False, True])
async def test_the_recording_of_a_failed_start_stays_if_a_client_connected(tmp_path: Path, somebody_came: bool) -> None:
    # As at a process of a cluster, which waits for others while its port is open.
    recording = serving._recording(tmp_path / "run.wtrace", ServeSettings())
    async with serving.flushed(recording, lambda: False):
        if somebody_came:
            recording.recorder.opened()
    assert (tmp_path / "run.wtrace").exists() is somebody_came


def test_a_password_file_that_is_not_text_is_one_sentence_and_status_2(tmp_path: Path) -> None:
    (tmp_path / "users").write_bytes(b"ann:secret\xff:prn::*,READ\n")
    status, complaint = refusal_here("serve", "--open-stores", "--password-file", str(tmp_path / "users"))
    assert (status, complaint) == (2, f"segstore serve: {tmp_path / 'users'} is not UTF-8 at byte 10\n")


def test_a_password_file_with_entries_of_another_form_starts_and_names_their_lines(tmp_path: Path) -> None:
    (tmp_path / "users").write_text("admin:1111_aaaa:prn::*,READ_UPDATE\nguest:pw:prn::\n")
    (tmp_path / "key").write_text("k")
    with served("--auth-key-file", str(tmp_path / "key"), "--password-file", str(tmp_path / "users")) as store:
        assert store.end() == 0
        errors = store.errors()
    assert "line 2 of the password file: an entry that is not resource,permission is skipped" in errors
    assert "guest" not in errors


def test_a_certificate_that_is_none_is_one_sentence_and_status_1(tmp_path: Path) -> None:
    certificate, key = write_certificate(tmp_path)
    key.write_text("no key")
    status, complaint = refused("--tls-cert", str(certificate), "--tls-key", str(key))
    assert status == 1
    assert str(key) in complaint
    assert len(complaint.strip().splitlines()) == 1


FAULTS_OF_FREED_MEMORY = """
import resource
from segstore.cli.serving import settle_memory

def use():
    several = [bytes((each,)) * 600_000 for each in range(8)]

settle_memory()
use()
use()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(50):
    use()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.needs("glibc")
def test_freed_memory_is_used_again_without_page_faults() -> None:
    run = [sys.executable, "-c", FAULTS_OF_FREED_MEMORY]
    done = subprocess.run(run, capture_output=True, text=True, check=True, timeout=PATIENCE_S)
    assert int(done.stdout) < 1_000, "otherwise each of 58,000 pages is cleared again"


def test_faults_act_and_rules_of_no_use_are_reported(tmp_path: Path) -> None:
    rules = tmp_path / "faults.yaml"
    rules.write_text(
        "rules:\n  - {match: type = CREATE_SEGMENT, do: WrongHost}\n"
        "  - {match: type = MERGE_SEGMENTS, do: close, name: never}\n"
    )
    with served("--faults", str(rules), "--announce", "json") as server:
        with server.connect() as peer:
            create_segment = CreateSegment(3, "a/b/0.#epoch.0", 0, 0, "", 0)
            assert ask(peer, Hello(17, 5), create_segment, count=2) == [Hello, WrongHost]
        assert server.end() == 0
        assert "fault 'never' has matched nothing: name 'never', match 'type = MERGE_SEGMENTS'" in server.errors()
