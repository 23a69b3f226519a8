"""Test suites for tests of the pytest plugin: a folder with a module that talks to a store."""

from pathlib import Path

import pytest

# pytester forgets what a run in this process has imported first, and gRPC and compiled modules can be loaded only once.
import segstore.client
import segstore.traces  # noqa: F401

TALK = """
import asyncio, socket
from segstore.wire import *

SEGMENT = "scope/stream/0.#epoch.0"
WRITER = __import__("uuid").UUID(int=7)

def event(data):
    return bytes(4) + len(data).to_bytes(4, "big") + data

def append(number, data, id_=9):
    return AppendBlockEnd(WRITER, len(event(data)), event(data), 1, number, id_)

BEGIN = Hello(17, 5), CreateSegment(1, SEGMENT, 0, 0, "", 0), SetupAppend(2, WRITER, SEGMENT, "")

def talk(where, *commands):
    found, decoder = [], FrameDecoder()
    with socket.create_connection((where.host, where.port), 20) as opened:
        opened.sendall(b"".join(map(encode, commands)))
        while len(found) < len(commands):
            data = opened.recv(1 << 16)
            if not data:
                return found + ["closed"]
            found += [each.type_name for each in decoder.feed(data)]
    return found

async def talk_async(where, *commands):
    found, decoder = [], FrameDecoder()
    reader, writer = await asyncio.open_connection(where.host, where.port)
    try:
        writer.write(b"".join(map(encode, commands)))
        while len(found) < len(commands):
            data = await reader.read(1 << 16)
            if not data:
                return found + ["closed"]
            found += [each.type_name for each in decoder.feed(data)]
    finally:
        writer.close()
        await writer.wait_closed()
    return found
"""
TRACES = Path(__file__).parent.parent / "fixtures" / "traces"
SLOW_S = 200
"""For a run in another process, which on a loaded machine takes a minute to begin."""
slow = pytest.mark.timeout(SLOW_S + 40)
_UNUSED = "rerunfailures", "schemathesis", "hypothesispytest", "anyio"
ALONE = tuple(word for name in _UNUSED for word in ("-p", f"no:{name}"))
"""Without plugins that the suites do not use: the first leaves a thread with a socket, the others import a lot."""
STRICT = ("-q", "--strict-markers", "--strict-config", "-Werror", "-p", "no:cacheprovider", *ALONE)


@pytest.fixture
def suite(pytester: pytest.Pytester) -> pytest.Pytester:
    """A folder for a test suite, with a module for talking to a store."""
    pytester.makeini(
        "[pytest]\nasyncio_default_fixture_loop_scope = function\npythonpath = .\nsegstore_process = no\n"
        f"addopts = {' '.join(ALONE)}\n"
    )
    pytester.makepyfile(talk=TALK)
    return pytester


def passed(result: pytest.RunResult, count: int, **others: int) -> None:
    result.assert_outcomes(passed=count, **others)


WRITES = """
    from talk import *

    def test_writes(segstore_server):
        talk(segstore_server, *BEGIN, append(1, b"a"))
"""


def recorded(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())
