"""Records fixtures/traces with the official client of Pravega:

    python tools/record_fixtures.py [FOLDER] [--only NAME ...]

For each scenario below a mock store with a controller is started, the client (`pip install segstore[clients]`, or the
interpreter that OFFICIAL_CLIENT_PYTHON names) is run against it in a process of its own, and what the connections to
the store carried is written as FOLDER/NAME.jsonl. As with Pravega, the controller makes, seals and merges segments over
a connection of its own, so a trace holds all that its store was told, and can be replayed to any other.

A scenario checks what it reads, so a trace of something that went wrong is not kept. Writer ids, transaction ids,
times and ports are others in each recording.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

ROOT: Final = Path(__file__).parent.parent
DEADLINE_S: Final = 60.0

# --- the client, in a process of its own ----------------------------------------------------------------------------

AFTER_A_SLICE_S: Final = 0.01
"""A blocking call right after an awaited slice can stall the client for good."""
EVENTS: Final = 12


def _stream(uri: str, segments: int) -> Any:
    from pravega_client import StreamManager  # type: ignore[import-untyped]  # it ships no types

    manager = StreamManager(uri)
    manager.create_scope("scope")
    manager.create_stream("scope", "stream", segments)
    return manager


async def _read(reader: Any, count: int) -> list[bytes]:
    events: list[bytes] = []
    while len(events) < count:
        found = await asyncio.wait_for(reader.get_segment_slice_async(), DEADLINE_S)
        await asyncio.sleep(AFTER_A_SLICE_S)
        events += [event.data() for event in found]
        reader.release_segment(found)
    return events


def _written(manager: Any, writer: Any = None) -> list[bytes]:
    writer = writer or manager.create_writer("scope", "stream")
    texts = [f"event {number}" for number in range(EVENTS)]
    for number, text in enumerate(texts):
        writer.write_event(text, routing_key=f"key {number % 3}")
    writer.flush()
    return [text.encode() for text in texts]


def _same(found: Sequence[object], wanted: Sequence[object]) -> None:
    if list(found) != list(wanted):
        raise SystemExit(f"the client has {found}, not {wanted}")


async def write(uri: str) -> None:
    """Events with routing keys to a stream of two segments; a larger one, and one that is flushed by itself."""
    manager = _stream(uri, 2)
    _written(manager)
    writer = manager.create_writer("scope", "stream")
    writer.write_event_bytes(bytes(range(256)) * 8, routing_key="large")
    writer.flush()
    writer.write_event("the last", routing_key="key 0")
    writer.flush()


async def read_group(uri: str) -> None:
    """A reader group: a reader reads half and goes offline, a second one reads the rest."""
    manager = _stream(uri, 2)
    wanted = _written(manager)
    group = manager.create_reader_group("group", "scope", "stream")
    first = group.create_reader("first")
    events = await _read(first, 1)
    first.reader_offline()
    await asyncio.sleep(AFTER_A_SLICE_S)
    events += await _read(group.create_reader("second"), EVENTS - len(events))
    _same(sorted(events), sorted(wanted))


async def transaction(uri: str) -> None:
    """A transaction that is committed, one that is aborted, and what a reader then sees."""
    manager = _stream(uri, 1)
    writer = manager.create_transaction_writer("scope", "stream", 1)
    committed, aborted = writer.begin_txn(), writer.begin_txn()
    for number in range(4):
        committed.write_event(f"committed {number}", routing_key=str(number))
        aborted.write_event(f"aborted {number}", routing_key=str(number))
    aborted.abort()
    committed.commit()
    reader = manager.create_reader_group("group", "scope", "stream").create_reader("reader")
    _same(await _read(reader, 4), [b"committed %d" % number for number in range(4)])


async def byte_stream(uri: str) -> None:
    """Bytes are written, read, sought, cut off at the head."""
    manager = _stream(uri, 1)
    stream = manager.create_byte_stream("scope", "stream")
    stream.write(b"hello world")
    stream.flush()
    buffer = bytearray(5)
    _same([stream.readinto(buffer), bytes(buffer)], [5, b"hello"])
    stream.truncate(6)
    stream.seek(6, 0)
    _same([stream.readinto(buffer), bytes(buffer)], [5, b"world"])
    _same([stream.current_head_offset(), stream.current_tail_offset()], [6, 11])


async def seal(uri: str) -> None:
    """A stream is sealed: a reader comes to its end, and a writer hears of it."""
    manager = _stream(uri, 1)
    writer = manager.create_writer("scope", "stream")
    wanted = _written(manager, writer)
    manager.seal_stream("scope", "stream")
    try:
        writer.write_event("late", routing_key="late")
        writer.flush()
    except Exception as error:  # noqa: BLE001 — whichever it is
        print(f"{type(error).__name__}: {error}")
    else:
        raise SystemExit("an event went into a sealed stream")
    reader = manager.create_reader_group("group", "scope", "stream").create_reader("reader")
    _same(await _read(reader, EVENTS), wanted)
    _same(await asyncio.wait_for(reader.get_segment_slice_async(), DEADLINE_S), [])


SCENARIOS: Final[Mapping[str, Callable[[str], Coroutine[Any, Any, None]]]] = {
    each.__name__: each for each in (write, read_group, transaction, byte_stream, seal)
}

# --- the recording --------------------------------------------------------------------------------------------------

R = TypeVar("R")


def _recorder(path: Path, name: str) -> Any:
    from importlib.metadata import PackageNotFoundError, version

    from segstore import __version__
    from segstore.traces import FileRecorder
    from segstore.wire import WIRE_VERSION
    from segstore.wire.trace import Metadata

    try:
        client = f"pravega {version('pravega')}"
    except PackageNotFoundError:  # it is another interpreter's
        client = "pravega"
    values = {"scenario": name, "what": str(SCENARIOS[name].__doc__), "client": client}
    return FileRecorder(path, Metadata(WIRE_VERSION, f"segstore {__version__} record_fixtures", values))


def _segments_over_the_wire(host: str, port: int) -> Any:
    """What the controller asks of a store, asked over a connection."""
    from segstore.server.segments import RemoteSegments
    from segstore.server.shared_folder import Owners
    from segstore.wire import WIRE_VERSION
    from segstore.wire.endpoint import Endpoint

    class OneOwner(Owners):
        def of(self, container_id: int) -> Endpoint:
            return Endpoint(host, port)

    return RemoteSegments(OneOwner(1), 1, token=lambda _: "", wire_version=WIRE_VERSION)


async def _record(name: str, folder: Path) -> Path:
    from segstore.server.cluster import Cluster, ClusterSettings
    from segstore.server.config import StoreSettings
    from segstore.server.controller import Controller
    from segstore.server.controller.api import ControllerServer
    from segstore.server.controller.state import Core
    from segstore.traces import TraceFile, write_trace

    cluster = Cluster(ClusterSettings(store=StoreSettings(port=0)))
    with tempfile.TemporaryDirectory() as scratch:
        capture = Path(scratch, "run.wtrace")
        cluster.stores[0].hub.recorder = recorder = _recorder(capture, name)
        async with cluster:
            assert cluster.address is not None
            segments = _segments_over_the_wire(*cluster.address)
            async with await ControllerServer(Controller(Core(segments))).start() as controller:
                await _run_client(name, f"tcp://127.0.0.1:{controller.port}")
            await segments.aclose()
        recorder.close()
        path = folder / f"{name}.jsonl"
        with TraceFile(capture) as trace:
            write_trace(path, trace.records(), lambda: trace.metadata)
    return path


async def _run_client(name: str, uri: str) -> None:
    python = os.environ.get("OFFICIAL_CLIENT_PYTHON") or sys.executable
    process = await asyncio.create_subprocess_exec(
        python, __file__, "--client", name, uri, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    try:
        async with asyncio.timeout(DEADLINE_S):
            said, _ = await process.communicate()
    except BaseException:
        process.kill()
        await process.wait()
        raise
    if process.returncode:
        raise SystemExit(f"{name}: the client failed\n{said.decode()[-2000:]}")


def _be_the_client(name: str, uri: str) -> None:
    try:
        asyncio.run(SCENARIOS[name](uri))
    except BaseException as error:  # noqa: BLE001 — some of the client's errors are no Exception
        print(f"{type(error).__name__}: {error}", flush=True)
        os._exit(1)
    # The client's destructors wait for servers and for the interpreter lock; nothing here needs them.
    os._exit(0)


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description="Records fixtures/traces with the official client.")
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / "fixtures" / "traces")
    parser.add_argument("--only", nargs="+", choices=sorted(SCENARIOS), default=list(SCENARIOS), metavar="NAME")
    parser.add_argument("--client", nargs=2, metavar=("NAME", "URI"), help="be the client of a recording")
    options = parser.parse_args(arguments)
    if options.client is not None:
        _be_the_client(*options.client)
    options.folder.mkdir(parents=True, exist_ok=True)
    for name in options.only:
        path = asyncio.run(_record(name, options.folder))
        print(f"{path}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main(sys.argv[1:])
