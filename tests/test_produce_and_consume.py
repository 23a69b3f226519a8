"""`segstore produce`, `consume` and `admin`, also as processes."""

import asyncio
import itertools
import json
import os
import re
import shlex
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryFile
from typing import NamedTuple

import pytest

from segstore.cli.pravega.formats import EventPlace, as_json, formatter, unescaped
from segstore.cli.pravega.running import _chunks
from segstore.client import StreamCut
from segstore.client.sync import connect
from segstore.testing import ServerThread
from tests.looped import looped
from tests.processes import PATIENCE_S, invoke

PAGE = (Path(__file__).parent.parent / "docs" / "how-to" / "produce-and-consume.md").read_text(encoding="utf-8")
SEGSTORE = (sys.executable, "-m", "segstore")

NUMBERS = itertools.count()


class Done(NamedTuple):
    """How a command ended."""

    returncode: int
    stdout: bytes
    stderr: bytes


Run = Callable[..., Done]

HUGE = "9" * 30


@pytest.fixture(scope="module")
def uri() -> Iterator[str]:
    with ServerThread() as host:
        yield f"tcp://{host.serve(watched=False).controller_uri}"


@pytest.fixture(scope="module")
def run(uri: str, grpc_runs: None) -> Run:
    """Runs a command in this process, with a file as its standard input."""

    def segstore(*arguments: str, given: bytes = b"") -> Done:
        with TemporaryFile() as file:
            file.write(given)
            file.seek(0)
            result = invoke(*arguments, input=file, env={"SEGSTORE_CONTROLLER": uri})
        return Done(result.exit_code, result.stdout_bytes, result.stderr_bytes)

    assert segstore("admin", "scopes", "create", "a").returncode == 0
    return segstore


@pytest.fixture
def stream(run: Run, request: pytest.FixtureRequest) -> str:
    name = "a/" + re.sub(r"[\W_]+", "-", request.node.name)[:50].strip("-") + str(next(NUMBERS))
    assert run("admin", "streams", "create", name).stderr == b""
    return name


def test_the_commands_of_the_page_print_what_it_shows(run: Run) -> None:
    blocks = re.findall(r"^```console\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    shown = [each.partition("\n") for block in blocks for each in block.removeprefix("$ ").split("\n$ ")]
    assert len(shown) > 10
    for command, _, output in shown:
        printed = b""
        for part in command.split(" | "):
            if part.startswith("segstore "):
                _, *words = shlex.split(part)
                _, printed, errors = run(*words, given=printed)
                assert (command, errors) == (command, b"")
            else:
                printed = subprocess.run(["sh", "-c", part], input=printed, stdout=subprocess.PIPE, check=True).stdout
        assert (command, printed.decode().rstrip("\n")) == (command, output.rstrip("\n"))


def test_delimiters_keys_and_the_rest_without_one(run: Run, stream: str) -> None:
    made = run("produce", stream, "-D", r"\0", "-K", "=>", "-k", "k", given=b"k=>1\0k=>\n2=>\0no key\0k=>\0k=>last")
    assert (made.returncode, made.stderr) == (0, b"")
    assert run("consume", stream, "-e", "-D", "|").stdout == b"1|\n2=>|no key||last|"
    assert run("consume", stream, "-e", "-c", "2", "-f", "%S,").stdout == b"1,4,"
    assert run("consume", stream, "-e", "-c", "2", "-D", r"%s\t").stdout == b"1%s\t\n2=>%s\t"
    assert run("consume", stream, "-e", "-c", "2", "-D", "").stdout == b"1\n2=>"
    assert run("produce", stream, "-K", ":", given=b"\xef\xbb\xbfa:\xef\xbb\xbf1").returncode == 0
    assert run("consume", stream, "-e").stdout.endswith(b"last\n\xef\xbb\xbf1\n")


def test_events_before_an_invalid_one_are_stored_and_counted(run: Run, stream: str) -> None:
    most = ("-X", "max_large_event_bytes=100", "-X", "max_event_bytes=100", "-D", r"\0")
    events = [b"%d" % number for number in range(3_000)]
    bad = "event 3001: its routing key is not UTF-8 at byte 0", "event 3001: an event has at most 100 bytes"
    for wrong, options, said in (
        (b"\xff:2\0", ("-K", ":"), f"{bad[0]}; events stored: 3000"),
        (bytes(200).replace(b"\0", b"x"), most, f"{bad[1]} (max_large_event_bytes); events stored: 3000"),
    ):
        delimiter = b"\n" if options[0] == "-K" else b"\0"
        given = delimiter.join([*events, wrong + delimiter, b"later"])
        done = run("produce", stream, *options, given=given)
        assert (done.returncode, done.stderr.decode()) == (1, f"segstore: standard input: {said}\n")
    assert sorted(run("consume", stream, "-e").stdout.split()) == sorted(events * 2)


def test_many_lines_arrive_once_and_in_order(run: Run, stream: str) -> None:
    lines = b"".join(b"%d\n" % number for number in range(20_000))
    assert run("produce", stream, "-k", "one", given=lines).returncode == 0
    assert run("consume", stream, "-e").stdout == lines
    assert run("consume", stream, "-c", "3").stdout == b"0\n1\n2\n"
    assert run("consume", stream, "-o", "end", "-e").stdout == b""


def test_a_cut_continues_and_must_be_of_the_stream(run: Run, stream: str) -> None:
    run("produce", stream, given=b"before\n")
    shown = json.loads(run("admin", "--json", "streams", "show", stream).stdout)
    run("produce", stream, given=b"after\n")
    assert run("consume", stream, "-o", shown["tail"], "-e").stdout == b"after\n"
    assert run("consume", stream, "-o", shown["head"], "-e").stdout == b"before\nafter\n"
    other = run("consume", "a/other", "-o", shown["head"])
    assert (other.returncode, other.stderr.count(b"\n")) == (2, 1)
    assert f"this is a cut of {stream}, not of a/other" in other.stderr.decode()
    refused = run("admin", "streams", "truncate", "a/other", shown["head"])
    assert (refused.returncode, refused.stderr.count(b"\n")) == (2, 1)


def test_a_cut_behind_the_end_is_refused_with_segment_offset_and_end(run: Run, stream: str) -> None:
    run("produce", stream, given=b"event\n")
    behind = StreamCut(*stream.split("/"), {0: 1000}).to_text()
    for options in ((), ("-e",), ("-G", "behind")):
        refused = run("consume", stream, "-o", behind, *options)
        assert (refused.returncode, refused.stdout, refused.stderr.count(b"\n")) == (1, b"", 1)
        for fact in (f"{stream}/0.#epoch.0", "1000", "13"):
            assert fact in refused.stderr.decode()


def test_members_of_a_group_continue_where_the_last_one_stopped(run: Run, stream: str) -> None:
    run("produce", stream, given=b"1\n2\n3\n")
    assert run("consume", stream, "-G", "g", "-c", "2").stdout == b"1\n2\n"
    assert run("consume", stream, "-G", "g", "-c", "1").stdout == b"3\n"
    shown = json.loads(run("admin", "--json", "groups", "show", "a/g").stdout)
    assert (shown["streams"], shown["readers"]) == ([stream], [])
    assert run("admin", "groups", "offline", "a/g", "r").stderr == b"segstore: no reader r of a/g is online\n"
    assert run("admin", "groups", "delete", "a/g").returncode == 0
    assert run("admin", "groups", "show", "a/g").returncode == 1


def test_a_group_is_created_in_the_form_of_the_clients_it_is_shared_with(run: Run, stream: str) -> None:
    run("produce", stream, given=b"1\n2\n3\n")
    assert run("consume", stream, "-G", "tabled", "--shared-with", "rust", "-c", "2").stdout == b"1\n2\n"
    assert run("consume", stream, "-G", "tabled", "-c", "1").stdout == b"3\n"
    assert run("consume", stream, "-G", "logged", "-c", "1").stdout == b"1\n"
    streams = run("admin", "streams", "list", "a").stdout.split()
    assert (b"_RGlogged" in streams, b"_RGtabled" in streams) == (True, False)
    alone = run("consume", stream, "--shared-with", "rust")
    assert (alone.returncode, b"give -G" in alone.stderr) == (2, True)
    for name in ("tabled", "logged"):
        assert run("admin", "groups", "delete", f"a/{name}").returncode == 0


def test_a_group_is_shown_with_its_end(uri: str, run: Run, stream: str) -> None:
    run("produce", stream, given=b"1\n2\n")
    scope, _, name = stream.partition("/")
    with connect(uri) as pravega, pravega.reader_group(scope, "ending", streams=[name], to="tail"):
        shown = json.loads(run("admin", "--json", "groups", "show", "a/ending").stdout)
    assert StreamCut.from_text(shown[f"end in {stream}"]) == {0: 18}
    assert run("admin", "groups", "delete", "a/ending").returncode == 0


def process(uri: str, *arguments: str) -> subprocess.Popen[bytes]:
    pipe = subprocess.PIPE
    environment = os.environ | {"SEGSTORE_CONTROLLER": uri}
    return subprocess.Popen([*SEGSTORE, *arguments], stdin=pipe, stdout=pipe, stderr=pipe, env=environment)


def test_a_signal_ends_consume_and_produce_which_stores_what_it_read(uri: str, run: Run, stream: str) -> None:
    number = signal.SIGTERM
    with (
        process(uri, "consume", stream, "-G", "g" + number.name) as consumer,
        process(uri, "produce", stream) as producer,
    ):
        producer.stdin.write(b"one\nhalf a li")
        producer.stdin.flush()
        assert consumer.stdout.readline() == b"one\n"
        for each in (producer, consumer):
            each.send_signal(number)
            assert each.wait(PATIENCE_S) == 128 + number
            said = b"segstore: interrupted; events stored: 1\n" if each is producer else b""
            assert each.stderr.read() == said
    assert run("consume", stream, "-e").stdout == b"one\n"


def test_consume_ends_when_the_reader_of_its_output_has_gone(uri: str, run: Run, stream: str) -> None:
    run("produce", stream, given=b"1\n2\n")
    with process(uri, "consume", stream, "-G", "unread") as consumer:
        assert [consumer.stdout.readline() for _ in range(2)] == [b"1\n", b"2\n"]
        consumer.stdout.close()
        assert (consumer.wait(PATIENCE_S), consumer.stderr.read()) == (1, b"")


def test_consume_ends_without_a_reader_while_it_waits_for_a_controller() -> None:
    with process("tcp://127.0.0.1:1", "consume", "a/s", "-X", "refused_timeout_ms=600000") as waiting:
        assert b"retrying while calls wait" in waiting.stderr.readline()
        waiting.stdout.close()
        assert (waiting.wait(PATIENCE_S), waiting.stderr.read()) == (1, b"")


def test_grpc_prints_nothing_when_a_server_ends_a_connection() -> None:
    settings, goaway = b"\0\0\0\4\0\0\0\0\0", b"\0\0\10\7\0\0\0\0\0" + struct.pack(">II", 0, 2)  # 2: an error
    server = socket.create_server(("127.0.0.1", 0))
    uri = f"tcp://127.0.0.1:{server.getsockname()[1]}"
    with process(uri, "consume", "a/s", "-X", "refused_timeout_ms=600000") as waiting:
        with server:
            peer, _ = server.accept()
        with peer:
            peer.sendall(settings)
            assert peer.recv(1 << 16)
            peer.sendall(goaway)
            peer.shutdown(socket.SHUT_WR)
            while peer.recv(1 << 16):
                pass
        waiting.send_signal(signal.SIGINT)
        assert waiting.wait(PATIENCE_S) == 128 + signal.SIGINT
        assert b"goaway" not in waiting.stderr.read()


@pytest.mark.parametrize(
    ("arguments", "redirection", "status", "says"),
    [
        (("consume", "-e"), ">/dev/full", 1, "segstore: standard output: No space left on device\n"),
        (("consume", "-e"), "<&- 2>&-", 0, ""),
    ],
)
def test_standard_streams_may_be_full_or_closed(
    uri: str, run: Run, stream: str, arguments: tuple[str, ...], redirection: str, status: int, says: str
) -> None:
    run("produce", stream, given=b"line\n" * 10)
    command = ["sh", "-c", f'exec "$@" {redirection}', "sh", *SEGSTORE, *arguments, stream]
    environment = os.environ | {"SEGSTORE_CONTROLLER": uri}
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False, env=environment)
    assert (done.returncode, done.stderr, bool(done.stdout)) == (status, says, not status)


async def test_standard_input_may_be_non_blocking() -> None:
    reading, writing = os.pipe()
    try:
        os.set_blocking(reading, False)
        first = asyncio.ensure_future(anext(_chunks(reading)))
        await asyncio.sleep(0.01)
        os.write(writing, b"line")
        assert await first == b"line"
    finally:
        os.close(reading)
        os.close(writing)


def test_a_terminal_shows_control_characters_escaped(uri: str, run: Run, stream: str) -> None:
    run("produce", stream, given=b"\x1b[2Jred\n")
    reading, terminal = os.openpty()
    try:
        command = [*SEGSTORE, "consume", stream, "-e"]
        environment = os.environ | {"SEGSTORE_CONTROLLER": uri}
        subprocess.run(command, stdout=terminal, check=True, timeout=PATIENCE_S, env=environment)
        assert os.read(reading, 1024) == b"\\u001b[2Jred\r\n"
    finally:
        os.close(reading)
        os.close(terminal)


def test_what_is_there_is_managed(run: Run, stream: str, uri: str) -> None:
    assert run("admin", "streams", "create", stream).stderr == f"segstore: stream {stream} exists\n".encode()
    policies = ("--event-rate", "10", "--factor", "3", "--keep-bytes", "9")
    assert run("admin", "streams", "update", stream, *policies).returncode == 0
    shown = json.loads(run("admin", "--json", "streams", "show", stream).stdout)
    assert (shown["scaling"], shown["retention"]) == ("10 events/s, factor 3", "at least 9 bytes")
    assert run("admin", "streams", "seal", stream).returncode == 0
    shown = json.loads(run("admin", "--json", "streams", "show", stream).stdout)
    assert (shown["sealed"], shown["segments"], shown["tail"]) == (True, [], None)
    assert (
        run("produce", stream, given=b"x").stderr == f"segstore: stream {stream} is sealed; events stored: 0\n".encode()
    )

    assert run("admin", "tables", "create", "a/t", "--key-bytes", "4").returncode == 0
    assert run("admin", "tables", "list", "a").stdout == b"t\n"
    assert run("admin", "tables").stdout == b"a/t\n"
    assert f"{stream}\n".encode() in run("admin", "streams", "list").stdout
    follows = run("admin", "-b", "tcp://127.0.0.1:1", "tables", "list", "-b", uri, "--json")
    assert (follows.stdout, follows.stderr) == (b'{"table": "a/t"}\n', b"")
    assert b"primary_key_bytes: 4\n" in run("admin", "tables", "show", "a/t").stdout
    assert run("admin", "tables", "delete", "a/t").returncode == 0
    assert run("admin", "tables", "delete", "a/t").stderr == b"segstore: there is no table a/t\n"
    assert run("admin", "scopes", "delete", "none").stderr == b"segstore: there is no scope none\n"
    assert b"\na\n" in b"\n" + run("admin", "scopes", "list").stdout


def test_transactions_are_listed_shown_committed_and_aborted(uri: str, run: Run, stream: str) -> None:
    from segstore.client.sync import connect

    scope, name = stream.split("/")
    with connect(uri) as pravega:
        first, second = (str(pravega.controller.create_transaction(scope, name, 30_000)[0]) for _ in range(2))
    assert run("admin", "transactions", "show", stream, first).stdout == f"id: {first}\nstatus: OPEN\n".encode()
    assert run("admin", "transactions", "commit", stream, first).returncode == 0
    assert run("admin", "transactions", "abort", stream, second).returncode == 0
    assert json.loads(run("admin", "--json", "transactions", "list", stream).stdout) == [
        {"id": first, "status": "COMMITTED"},
        {"id": second, "status": "ABORTED"},
    ]
    none = "00000000-0000-0000-0000-000000000001"
    missing = run("admin", "transactions", "show", stream, none)
    said = f"segstore: transaction {none} of {stream} does not exist, or ended long ago\n"
    assert (missing.returncode, missing.stdout, missing.stderr) == (1, b"", said.encode())
    again = run("admin", "transactions", "abort", stream, first)
    assert (again.returncode, again.stderr.count(b"\n")) == (1, 1)


@looped(
    ("arguments", "says"),
    [
        (("consume", "no-scope"), "'no-scope' is not SCOPE/NAME"),
        (("consume", "a/s", "-f", "%k"), "Pravega stores no keys with events"),
        (("consume", "a/s", "-f", "%z"), "is none of %s, %S"),
        (("consume", "a/s", "-J", "-f", "%s"), "give one of -f, -D and -J"),
        (("consume", "a/s", "-G", "g", "-e"), "give -G or -e"),
        (("consume", "a/s", "-o", "yesterday"), "-o takes begin, end, s@TIME or the text of a stream cut"),
        (("consume", "a/s", "-o", "s@noon"), "'s@noon' is not s@TIME"),
        (("consume", "a/s", "--rate", "nan"), "nan is not a finite number"),
        (("produce", "a/s", "--rate", "-1"), "-1.0 is not in the range x>0"),
        (("consume", "a/s", "-G", ""), "'' is not a name: it is empty or has a slash"),
        (("consume", "a/\udcff"), r"b'a/\xff' is not UTF-8"),
        (("consume", "a/s", "-X", "read_size_bytes=3000000000"), "less than or equal to 2147483647"),
        (("consume", "a/s", "-X", "call_timeout_ms=1e300"), "less than or equal to 2147483647"),
        (("produce", "a/s", "-D", ""), "a delimiter has at least one byte"),
        (("produce", "a/s", "-D", r"\q"), r"\q in '\\q' is none of"),
        (("produce", "a/s", "-X", "password=secret"), "give password as SEGSTORE_CLIENT_PASSWORD"),
        (("produce", "a/s", "-X", "requst_timeout_ms=1"), "client setting requst_timeout_ms: there is no such key"),
        (("produce", "a/s", "-X", "call_timeout_ms=soon"), "client setting call_timeout_ms: a number is needed"),
        (("produce", "a/s", "-X", 'retry={"initial_ms": "x"}'), "client setting retry.initial_ms: a number is needed"),
        (("produce", "a/s", "-X", "retry={"), "client setting retry: this is not json: "),
        (("produce", "a/s", "-X", "nothing"), "is not NAME=VALUE"),
        (("produce", "a/s", "-b", "http://x"), "the scheme must be tcp or tls"),
        (("admin", "streams", "create", "a/s", "--event-rate", "1", "--data-rate", "1"), "--event-rate or --data-rate"),
        (("admin", "streams", "create", "a/s", "--factor", "2"), "--factor goes with"),
        (("admin", "streams", "create", "a/s", "--segments", HUGE), f"{HUGE} is not in the range"),
        (("admin", "streams", "create", "a/s", "--tag", "x" * 256), "a tag has at most 255 characters, not 256"),
        (("admin", "streams", "create", "a/s", "--tag", "\udcff"), r"b'\xff' is not UTF-8"),
        (("admin", "streams", "scale", "a/s", HUGE), f"{HUGE} is not in the range 1<=x<=200000"),
        (
            ("admin", "streams", "truncate", "a/s", "garbage"),
            "CUT is tail or the text of a stream cut: 'garbage' is not",
        ),
        (("admin", "streams", "truncate", "a/s", "UNBOUNDED"), '"UNBOUNDED" names no position'),
        (
            ("admin", "tables", "create", "a/t", "--key-bytes", "200", "--secondary-key-bytes", "57"),
            "at most 256 bytes",
        ),
        (("admin", "scopes", "create", "a/b"), "'a/b' is not a name"),
        (("admin", "transactions", "show", "a/s", "1"), "'1' is not a valid uuid"),
    ],
)
def test_wrong_options_end_with_status_2_and_one_sentence(arguments: tuple[str, ...], says: str, uri: str) -> None:
    refused = invoke(*arguments, env={"SEGSTORE_CONTROLLER": uri})
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert says.lower() in refused.stderr.lower()
    assert (refused.stderr.count("\n"), "secret" in refused.stderr) == (1, False)


def test_an_unreachable_controller_is_named_in_one_sentence() -> None:
    options = ("-b", "tcp://127.0.0.1:1", "-X", "refused_timeout_ms=50")
    refused = invoke("consume", "a/s", *options)
    assert (refused.exit_code, refused.stderr.count("\n")) == (1, 1)
    assert "no controller could be reached" in refused.stderr


def test_formats_and_escapes() -> None:
    event = EventPlace("ü".encode(), "a/s", 3, 1, 40)
    assert formatter(r"%t/%p.%e@%o %S%%\t%s\x0a")(event) == "a/s/3.1@40 2%\tü\n".encode()
    assert formatter("%R")(event) == b"\0\0\0\2"
    assert unescaped(r"\n\r\t\0\\\xff") == b"\n\r\t\0\\\xff"
    assert as_json(event).decode() == '{"stream": "a/s", "segment": 3, "epoch": 1, "offset": 40, "payload": "ü"}\n'
    assert json.loads(as_json(event._replace(data=b"\xff")))["payload_base64"] == "/w=="
