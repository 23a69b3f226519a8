"""Servers run on uvloop where it is installed, and without it, as on Windows, where POSIX modules are missing, too.

Windows itself is not here: its missing modules and functions are taken away from a process of this system.
"""

import asyncio
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from segstore import loops
from segstore.wire import FrameDecoder, Hello, encode
from tests.looped import looped

LIKE_WINDOWS = """
import asyncio, os, sys
for name in ("uvloop", "fcntl", "resource", "pwd", "grp", "termios", "tty"):
    sys.modules[name] = None
asyncio.SelectorEventLoop.add_signal_handler = asyncio.AbstractEventLoop.add_signal_handler  # as on Windows
del os.sysconf, os.fork
from segstore.cli.commands import main
main(prog_name="segstore")
"""


def run_like_windows(*arguments: str | Path) -> subprocess.Popen[str]:
    command = (sys.executable, "-c", LIKE_WINDOWS, *map(str, arguments))
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


async def hello(port: int) -> str:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(encode(Hello(17, 5)))
    (reply,) = FrameDecoder().feed(await reader.read(4096))
    writer.close()
    await writer.wait_closed()
    return reply.type_name


def test_uvloop_is_used_where_it_is_installed() -> None:
    import uvloop

    assert loops.loop_factory() is uvloop.new_event_loop


def test_asyncio_is_used_where_uvloop_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)

    async def module() -> str:
        return type(asyncio.get_running_loop()).__module__

    assert loops.run(module()).startswith("asyncio.")


def test_packages_are_imported_without_posix_modules() -> None:
    program = LIKE_WINDOWS.partition("from segstore")[0] + "import segstore.client.sync, segstore.server"
    done = subprocess.run((sys.executable, "-c", program), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_store_serves_and_stops_without_uvloop_and_posix_modules() -> None:
    ports = ("--port", "0", "--controller-port", "0", "--http-port", "0")
    with run_like_windows("serve", *ports, "--announce", "json") as process:
        line = process.stdout.readline()
        try:
            assert line, process.stderr.read()
            port = int(json.loads(line)["segment_store"].rpartition(":")[2])
            assert asyncio.run(hello(port)) == "HELLO"
        finally:
            process.send_signal(signal.SIGINT)
            said = process.communicate(timeout=60)[1]
        assert (process.returncode, said) == (0, "")


def test_a_data_directory_without_file_locks_is_refused_in_one_sentence(tmp_path: Path) -> None:
    with run_like_windows("serve", "--port", "0", "--data", tmp_path / "data") as process:
        said = process.communicate(timeout=60)[1]
    assert process.returncode == 1
    assert said.strip().endswith("a data directory needs POSIX file locks; this system has none")
    assert len(said.splitlines()) == 1


@looped(
    ("package", "not_loaded"),
    [
        ("segstore.wire", {"asyncio", "grpc", "google.protobuf", "jwt", "pydantic", "fastapi", "uvicorn"}),
        ("segstore.client", {"grpc", "google.protobuf", "jwt", "cryptography", "fastapi", "starlette", "uvicorn"}),
        ("segstore.cli.serving", {"fastapi", "starlette", "uvicorn", "h11", "cryptography"}),
    ],
)
def test_an_import_loads_only_what_its_first_use_needs(package: str, not_loaded: set[str]) -> None:
    program = f"import sys, {package}; print(*sorted({not_loaded!r} & sys.modules.keys()))"
    done = subprocess.run((sys.executable, "-c", program), capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
