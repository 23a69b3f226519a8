"""The command line, as a person uses it."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import ValidationError

from segstore import __version__
from segstore.cli import serving
from segstore.cli.api import read_token
from segstore.cli.settings import ServeSettings, settings
from segstore.server.auth import read_secret
from segstore.server.config import read_toml
from segstore.server.faults import read_faults
from segstore.traces import write_trace
from segstore.wire import Hello, KeepAlive, ReadSegment, SegmentCreated, codec_backend, encode
from segstore.wire.inspect import dissector, to_line
from segstore.wire.trace import Metadata
from tests.conformance.recorded import read_lines
from tests.looped import looped
from tests.processes import invoke
from tests.wire.trace.traces import record

HELLO = encode(Hello(17, 5))
CREATED = encode(SegmentCreated(9, "a/b/0"))
FIXTURES = Path(__file__).parent.parent / "fixtures"


def run_process(*arguments: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """As a process of its own: options are checked on this way."""
    command = [sys.executable, "-m", "segstore", *arguments]
    return subprocess.run(command, input=given, capture_output=True, timeout=30, check=False)


@looped("form", ["raw", "hex", "base64"])
def test_encode_is_the_inverse_of_decode_in_every_form(form: str) -> None:
    lines = to_line(Hello(17, 5)) + "\n\n" + to_line(SegmentCreated(9, "a/b/0")) + "\n" + to_line(KeepAlive()) + "\n"
    encoded = invoke("encode", "--format", form, "-", input=lines)
    assert encoded.exit_code == 0
    decoded = invoke("decode", "--json", "-", input=encoded.stdout_bytes)
    assert (decoded.exit_code, decoded.stdout) == (0, lines.replace("\n\n", "\n"))


def test_decode_prints_a_line_a_frame_and_no_token() -> None:
    frame = encode(ReadSegment("a/b/0", 0, 100, "a.b.c", 7))
    result = invoke("decode", "-", input=HELLO + frame)
    assert result.stdout.splitlines() == [
        "HELLO high_version=17 low_version=5",
        'READ_SEGMENT segment="a/b/0" offset=0 suggested_length=100 delegation_token=<5 characters> request_id=7',
    ]
    assert "a.b.c" in invoke("decode", "--json", "-", input=frame).stdout


def test_input_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("segstore.cli.commands._MOST_INPUT", 1 << 20)
    monkeypatch.setattr("segstore.cli.commands._MOST_LINE", 1 << 20)
    for command in ("decode", "explain"):
        refused = invoke(command, "/dev/zero")
        assert (refused.exit_code, refused.stderr) == (1, "segstore: /dev/zero: it has more than 1048576 bytes\n")
    refused = invoke("encode", "/dev/zero")
    assert (refused.exit_code, refused.stderr) == (1, "segstore: /dev/zero: line 1 has more than 1048576 characters\n")


def test_a_bad_frame_is_named_with_offset_and_field_and_the_others_are_printed() -> None:
    bad = bytearray(CREATED)
    bad[17] = 99
    result = invoke("decode", "-", input=HELLO + bytes(bad) + HELLO + HELLO[:9])
    assert result.exit_code == 1
    assert result.stdout.splitlines() == ["HELLO high_version=17 low_version=5"] * 2
    first, second = result.stderr.splitlines()
    assert first.startswith("frame 2 at byte 16: SEGMENT_CREATED.segment at byte 16: 99 bytes are announced")
    assert second.startswith("frame 4 at byte 55: HELLO.length at byte 4: the header announces 8 bytes but 1 follow")


def test_an_unknown_type_is_an_error_unless_it_is_to_be_kept() -> None:
    frame = "0000000600000001ff"
    assert invoke("decode", "-", input=frame).exit_code == 1
    kept = invoke("decode", "--keep-unknown", "--json", "-", input=frame)
    assert kept.exit_code == 0
    assert invoke("encode", "-", input=kept.stdout).stdout == frame + "\n"


@looped("command", ["decode", "explain"])
@looped(("given", "says"), [(b"", "there is no input"), (b"what?", "neither hex nor base64")])
def test_input_in_no_known_form_is_refused(command: str, given: bytes, says: str) -> None:
    result = invoke(command, "-", input=given)
    assert result.exit_code == 1
    assert says in result.stderr


@pytest.mark.parametrize("command", ["decode", "explain"])
def test_a_frame_can_be_the_argument_unless_a_file_has_its_name(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for given in (HELLO.hex(), f"0x{HELLO.hex()}", (HELLO * 200).hex()):
        result = invoke(command, given)
        assert (result.exit_code, result.stderr) == (0, "")
        assert "HELLO" in result.stdout
    (tmp_path / HELLO.hex()).write_bytes(encode(KeepAlive()))
    assert "KEEP_ALIVE" in invoke(command, HELLO.hex()).stdout
    assert "No such file" in invoke(command, "nofile").stderr
    assert invoke(command, HELLO.hex()[:-1]).exit_code == 2


def test_explain_shows_each_byte_and_the_error_of_a_malformed_frame() -> None:
    result = invoke("explain", "-", input=CREATED + HELLO[:12])
    assert result.exit_code == 1
    text = result.stdout
    assert "frame 1 at byte 0: SEGMENT_CREATED, 23 bytes" in text
    assert '000012  61 2f 62 2f 30                                   segment         "a/b/0"' in text
    assert "frame 2 at byte 23: malformed, 12 bytes" in text
    assert "high_version  17" in text
    assert "error at 0x0004: HELLO.length at byte 4" in text


@looped(
    ("given", "says"),
    [
        ("", "there is no input"),
        (to_line(KeepAlive()) + '\n{"type": "HELLO", "fields": {"high_version": 1}}', "line 2: HELLO.low_version"),
        ("nonsense", "line 1: not JSON"),
        (b"\xff", "not UTF-8 at byte 0"),
    ],
)
def test_encode_names_the_line_and_the_field_that_are_invalid(given: str | bytes, says: str) -> None:
    result = invoke("encode", "-", input=given)
    assert result.exit_code == 1
    assert says in result.stderr


@looped(
    ("arguments", "says"),
    [
        (["decode", "--no-such"], "no such option"),
        (["decode", "/no/such/file"], "no such file"),
        (["encode", "--format", "morse"], "'morse' is not one of"),
        (["fly"], "no such command 'fly'"),
        (["serve", "--port", "70000"], "--port: it must be less than or equal to 65535, not '70000'"),
        (["serve", "--own", "7", "--containers", "4"], "own names container 7, but there are 4"),
        (["serve", "--long-poll-s", "0"], "--long-poll-s: it must be greater than 0"),
        (["serve", "--tls-cert", "/no/such/file"], "'/no/such/file' does not exist"),
        (["tap", "--store", "a:1", "--record", ""], "'--record': the name is empty"),
        (["ctl", "snapshot", "take", ""], "ctl snapshot take: the name is empty"),
        (["serve", "--tls-cert", __file__], "tls_cert and tls_key go together"),
        (["serve", "--wire-version", "99"], "--wire-version"),
        (["serve", "--stores", "5", "--containers", "4"], "5 stores"),
        (["serve", "--stores", "2", "--own", "0"], "single store"),
    ],
)
def test_wrong_options_end_with_status_2_and_one_sentence(arguments: list[str], says: str) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert says in result.stderr.lower()
    assert result.stderr.count("\n") == 1


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[ServeSettings]:
    """What `serve` would run with."""
    options: list[ServeSettings] = []
    monkeypatch.setattr(serving, "serve", options.append)
    monkeypatch.delenv("SEGSTORE_AUTH_KEY", raising=False)
    return options


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "key"
    path.write_text("from a file\n")
    path.chmod(0o600)
    return path


def test_a_key_without_users_and_users_without_a_key_are_refused_unless_they_are_meant(
    served: list[ServeSettings], key_file: Path
) -> None:
    key, users = ("--auth-key-file", str(key_file)), ("--password-file", str(key_file))
    for given, says in (
        (key, "give --password-file FILE, or --open-controller if this is intended"),
        ((*key, "--open-stores"), "give --password-file FILE, or --open-controller if this is intended"),
        (users, "give --auth-key-file FILE, or --open-stores if this is intended"),
        ((*users, "--open-controller"), "give --auth-key-file FILE, or --open-stores if this is intended"),
    ):
        refused = invoke("serve", *given)
        assert (refused.exit_code, refused.stderr.count("\n"), served) == (2, 1, [])
        assert says in refused.stderr
    for given in ((), (*key, *users), (*key, "--open-controller"), (*users, "--open-stores")):
        assert invoke("serve", *given).exit_code == 0
    assert len(served) == 4


def test_the_key_comes_from_a_file_or_the_environment_or_with_a_warning_from_the_command_line(
    served: list[ServeSettings], key_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve = ("serve", "--open-controller")
    assert invoke(*serve, "--auth-key-file", str(key_file)).stderr == ""
    literal = invoke(*serve, "--auth-key", "as it stands")
    assert "process list" in literal.stderr
    assert "as it stands" not in literal.stderr
    monkeypatch.setenv("SEGSTORE_AUTH_KEY", "of the environment")
    assert invoke(*serve).stderr == ""
    assert invoke(*serve, "--auth-key-file", str(key_file)).stderr == ""
    keys = [each.cluster.store.signing_key for each in served]
    assert keys == ["from a file", "as it stands", "of the environment", "from a file"]
    both = invoke(*serve, "--auth-key-file", str(key_file), "--auth-key", "as it stands")
    assert (both.exit_code, both.stderr) == (2, "main serve: give either --auth-key or --auth-key-file, not both\n")


@pytest.mark.parametrize(
    ("data", "says"), [(b"", "is empty"), (b"\n", "is empty"), (b"secret\xff", "not UTF-8 at byte 6")]
)
def test_a_file_that_holds_no_key_is_refused_without_what_it_holds(
    served: list[ServeSettings], key_file: Path, data: bytes, says: str
) -> None:
    key_file.write_bytes(data)
    refused = invoke("serve", "--auth-key-file", str(key_file))
    assert (refused.exit_code, refused.stderr.count("\n"), served) == (2, 1, [])
    assert says in refused.stderr
    assert "secret" not in refused.stderr
    assert "sssss" not in refused.stderr


def test_settings_show_no_secret(served: list[ServeSettings], key_file: Path) -> None:
    options = ("--auth-key", "a-secret", "--open-controller", "--zookeeper", "h:1")
    invoke("serve", *options, "--zookeeper-auth-file", str(key_file))
    shown = f"{served[0]!r} {served[0]} {served[0].model_dump()} {served[0].model_dump_json()}"
    assert "a-secret" not in shown
    assert "from a file" not in shown
    for wrong in ({"own": {9}}, {"port": -1}, {"tls_cert": key_file}, {"unknown": 1}):
        for cluster in ({}, {"controller_port": 0}, {"memory_bytes": 1}):
            with pytest.raises(ValidationError) as refused:
                ServeSettings.model_validate({"cluster": {"store": {"auth_key": "a-secret", **wrong}, **cluster}})
            assert "a-secret" not in str(refused.value)


def test_it_runs_as_a_module_and_says_its_version() -> None:
    done = run_process("--version")
    assert (done.returncode, done.stdout.decode()) == (0, f"segstore, version {__version__}, codec {codec_backend}\n")


def test_help_is_the_same_without_docstrings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")  # the width of the help, in either process
    pages = ["", "serve", "ctl", "ctl faults", "ctl streams list", "admin streams create", "trace", "send", "produce"]
    program = (
        "import sys; from click.testing import CliRunner; from segstore.cli import main\n"
        "for page in sys.argv[1:]: print(CliRunner().invoke(main, [*page.split(), '--help']).stdout)"
    )
    command = [sys.executable, "-OO", "-c", program, *pages]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "".join(f"{invoke(*page.split(), '--help').stdout}\n" for page in pages)


def test_arguments_are_text_in_any_locale(tmp_path: Path) -> None:
    path = tmp_path / "käse.jsonl"
    write_trace(path, [record(SegmentCreated(1, "käse/s/0"), reply=True), record(HELLO)], Metadata)
    ascii_only = os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, "-m", "segstore", "trace", "show", str(path), "-f"]
    for expression, shown in (("segment = 'käse/s/0'", b"SEGMENT_CREATED"), (b"segment = '\xff'", b"is not UTF-8")):
        done = subprocess.run([*command, expression], capture_output=True, timeout=60, check=False, env=ascii_only)
        assert shown in (done.stdout or done.stderr)
        assert done.returncode == (0 if done.stdout else 2)
    surrogates = "käse".encode().decode("ascii", "surrogateescape")
    assert settings()["published_host"].value(surrogates) == "käse"
    assert settings()["record"].value(surrogates) == Path(surrogates)
    with pytest.raises(ValueError, match="is not UTF-8"):
        settings()["auth_key"].value("\udcff")


def test_a_byte_order_mark_before_text_is_dropped(tmp_path: Path) -> None:
    faults = "rules: [{do: hold, name: a}]"
    path = tmp_path / "file"
    texts: list[tuple[str, Callable[[Path], object]]] = [
        (to_line(Hello(17, 5)), lambda path: invoke("encode", path).stdout),
        (HELLO.hex(), lambda path: invoke("decode", path).stdout),
        ((FIXTURES / "traces" / "write.jsonl").read_text("utf-8"), lambda path: invoke("trace", "show", path).stdout),
        (faults, read_faults),
        ('{"rules": [{"do": "hold", "name": "a"}]}', lambda path: read_faults(path.rename(path.with_suffix(".json")))),
        ("port = 5", read_toml),
        ("secret", read_secret),
        ("secret", read_token),
        ('{"case": "a", "type": "HELLO", "fields": {}, "hex": "00"}', read_lines),
    ]
    for text, read in texts:
        path.write_text(text, "utf-8")
        plain = read(path)
        path.write_text(text, "utf-8-sig")
        assert read(path) == plain != "", text[:40]


def test_looking_at_a_frame_loads_no_server() -> None:
    program = (
        "import sys; from segstore.cli.commands import main; main(['decode', '-'], standalone_mode=False); "
        "print(sorted({'pydantic', 'uvloop', 'asyncio', 'segstore.server', 'segstore.cli.ctl'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", program], input=HELLO, capture_output=True, timeout=30, check=False)
    assert done.stdout.decode().splitlines() == ["HELLO high_version=17 low_version=5", "[]"]


def test_a_codec_that_does_not_exist_is_refused_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEGSTORE_CODEC", "fastest")
    process = run_process("decode", "-", given=HELLO)
    assert (process.returncode, process.stdout) == (2, b"")
    assert process.stderr.decode().splitlines() == [
        "segstore: SEGSTORE_CODEC is 'fastest'; it can be 'c', 'python' or 'construct'"
    ]


@pytest.mark.parametrize("command", ["decode", "explain"])
def test_a_trace_is_no_frame_and_is_sent_where_it_can_be_read(
    tmp_path: Path, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("segstore.cli.commands._MOST_INPUT", 64)  # also one that is too long for frames
    for name in ("a.wtrace", "a.jsonl"):
        path = tmp_path / name
        write_trace(path, [], Metadata)
        result = invoke(command, path)
        assert result.exit_code == 1
        assert result.stderr == f"segstore: {path}: this is a trace, for `segstore trace show --hex`\n"


def test_the_dissector_is_written_for_a_port() -> None:
    result = invoke("dissector", "--port", "4711")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == dissector(port=4711)
    assert '"4711"' in result.stdout
    assert invoke("dissector", "--port", "70000").exit_code == 2


@looped("command", [("encode",), ("decode", "-")])
def test_a_closed_standard_input_is_named(command: tuple[str, ...]) -> None:
    shell = ["sh", "-c", 'exec "$@" <&-', "sh", sys.executable, "-m", "segstore", *command]
    done = subprocess.run(shell, capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "segstore: standard input is closed: there is no input\n"


@looped(
    ("command", "redirection", "why"),
    [
        ("serve --port 0 --controller-port 0", ">/dev/full", "No space left on device"),
        ("--version", ">&-", "Bad file descriptor"),
    ],
)
def test_standard_output_is_named_if_it_cannot_be_written(command: str, redirection: str, why: str) -> None:
    shell = ["sh", "-c", f'exec "$@" {redirection}', "sh", sys.executable, "-m", "segstore", *command.split()]
    done = subprocess.run(shell, capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stderr) == (1, f"segstore: standard output: {why}\n")


def test_ctrl_c_ends_the_imports_without_a_traceback(tmp_path: Path) -> None:
    """A module that is imported first interrupts its process, as often as modules are looked for afterwards."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os, signal, sys\n\n"
        "class Interrupts:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'segstore.cli.commands':\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n\n"
        "sys.meta_path.insert(0, Interrupts())\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)  # the tests may run where it is ignored\n"
    )
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "segstore", "--version"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=30, check=False, env=os.environ | {"PYTHONPATH": path}
    )
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


def test_sigint_stays_ignored_where_the_caller_ignores_it() -> None:
    """As a shell does for jobs in the background."""
    shell = ["sh", "-c", 'trap "" INT; echo; exec "$@"', "sh", sys.executable, "-m", "segstore", "encode"]
    with subprocess.Popen(shell, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "\n"
        process.stdin.write(to_line(Hello(17, 5)))
        process.stdin.flush()
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=30)
    assert (process.returncode, out) == (0, HELLO.hex() + "\n")
