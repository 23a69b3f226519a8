"""The shared loop: several threads, interruptions, forks, and the end."""

import asyncio
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from segstore.client.errors import Closed
from segstore.client.sync import Client, connect
from segstore.client.sync.loop import Lease, LoopThread
from segstore.testing import RunningServer
from tests.client.support import settings
from tests.processes import PATIENCE_S


def loops() -> int:
    return sum(each.name == "segstore.client.sync" for each in threading.enumerate())


def test_clients_share_one_thread_and_the_last_ends_it(server: RunningServer) -> None:
    assert loops() == 0
    uri = f"tcp://{server.controller_uri}"
    with connect(uri, settings()) as first:
        with connect(uri, settings()) as second:
            assert loops() == 1
            second.controller.create_scope("shared")
        assert loops() == 1
        assert "shared" in list(first.controller.list_scopes())
        first.close()
        with pytest.raises(Closed, match="the client was closed"):
            first.metrics()
    assert loops() == 0


def test_many_threads_use_one_client(pravega: Client) -> None:
    with pravega.event_writer("a", "s") as writer, ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda number: writer.write(b"%d" % number), range(200)))
    with pravega.event_reader("a", "s") as reader:
        assert sorted(int(next(reader).data) for _ in range(200)) == list(range(200))


def test_closing_ends_a_pending_call_of_another_thread(pravega: Client) -> None:
    with pravega.event_reader("a", "s", from_="tail") as reader, ThreadPoolExecutor(1) as threads:
        pending = threads.submit(reader.read)
        reader.close()
        with pytest.raises(Closed):
            pending.result(PATIENCE_S)


def test_the_end_of_the_loop_ends_a_pending_call() -> None:
    lease, waiting = Lease(), threading.Event()
    lease.start()

    async def forever() -> None:
        waiting.set()
        await asyncio.Event().wait()

    with ThreadPoolExecutor(1) as threads:
        pending = threads.submit(lease.run, forever)
        assert waiting.wait(PATIENCE_S)
        lease.release()
        with pytest.raises(Closed, match="closed during the call"):
            pending.result(PATIENCE_S)
    lease.release()


def test_calls_that_race_with_the_end_all_end() -> None:
    async def nothing() -> None: ...

    def call(lease: Lease) -> bool:
        try:
            lease.run(nothing)
        except Closed:
            return True
        return False

    for _ in range(20):
        lease = Lease()
        lease.start()
        with ThreadPoolExecutor(4) as threads:
            calls = [threads.submit(call, lease) for _ in range(40)]
            lease.release()
            assert len([each.result(PATIENCE_S) for each in calls]) == 40


@pytest.mark.parametrize("scheduled", [True, False], ids=["after", "before"])
def test_an_interruption_around_the_start_of_a_call_leaves_no_call(
    monkeypatch: pytest.MonkeyPatch, scheduled: bool
) -> None:
    async def call() -> None:
        await asyncio.Event().wait()

    thread = LoopThread()
    schedule = thread._loop.call_soon_threadsafe

    def interrupted(*callback: Callable[[], None]) -> None:
        monkeypatch.undo()
        if scheduled:
            schedule(*callback)
        raise KeyboardInterrupt

    monkeypatch.setattr(thread._loop, "call_soon_threadsafe", interrupted)
    try:
        with pytest.raises(KeyboardInterrupt):
            thread.wait(call())
        assert not asyncio.all_tasks(thread._loop)
        assert not thread._pending
    finally:
        thread.stop()


def test_a_function_that_the_client_calls_cannot_call_it() -> None:
    lease = Lease()
    lease.start()
    try:
        with pytest.raises(RuntimeError, match="which waits for it"):
            lease.call(lambda: lease.call(int))
    finally:
        lease.release()


def test_a_submitted_future_carries_the_error_and_cannot_be_cancelled() -> None:
    async def accept() -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        future.get_loop().call_soon(future.set_exception, ValueError("refused"))
        return future

    lease = Lease()
    lease.start()
    try:
        future = lease.submit(accept)
        assert not future.cancel()
        with pytest.raises(ValueError, match="refused"):
            future.result(PATIENCE_S)
    finally:
        lease.release()


INTERRUPTED = """
import signal, sys
from segstore.client.sync import connect

signal.signal(signal.SIGINT, signal.default_int_handler)  # the tests may run where it is ignored
with connect(sys.argv[1]) as pravega:
    pravega.controller.create_scope("c")
    pravega.controller.create_stream("c", "s")
    with pravega.event_reader("c", "s") as reader:
        try:
            print("reading", flush=True)
            reader.read()
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        with pravega.event_writer("c", "s") as writer:
            writer.write(b"after")
        print(next(reader).data.decode(), flush=True)
forgotten = connect(sys.argv[1])  # a client that is never closed does not hold the exit
forgotten.open()
"""

FORKED = """
import os, sys
from segstore.client.errors import Closed
from segstore.client.sync import connect

with connect(sys.argv[1]) as pravega:
    if (child := os.fork()) == 0:
        for use in (pravega.metrics, connect(sys.argv[1]).open):
            try:
                use()
            except Closed as error:
                print(error, flush=True)
        os._exit(0)
    os.waitpid(child, 0)
    print(type(list(pravega.controller.list_scopes())) is list, flush=True)
if os.fork() == 0:
    with connect(sys.argv[1]) as pravega:
        print(type(list(pravega.controller.list_scopes())) is list, flush=True)
    os._exit(0)
os.wait()
"""


def run(program: str, server: RunningServer) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", program, f"tcp://{server.controller_uri}"]
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True)


def test_ctrl_c_cancels_the_pending_call_and_the_client_lives_on(server: RunningServer) -> None:
    with run(INTERRUPTED, server) as process:
        assert process.stdout.readline() == "reading\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE_S)
        assert (out, process.returncode) == ("interrupted\nafter\n", 0), err


def test_a_process_forked_from_an_open_client_gets_a_clear_error_and_others_work(server: RunningServer) -> None:
    with run(FORKED, server) as process:
        out, _ = process.communicate(timeout=PATIENCE_S)
        used, opened, parent, forked_later = out.splitlines()
        assert "was forked while a client was open" in used
        assert opened == used
        assert (parent, forked_later, process.returncode) == ("True", "True", 0)


@pytest.mark.parametrize(
    ("module", "patched"),
    [
        ("gevent.monkey", SimpleNamespace(is_module_patched=lambda name: name == "threading")),
        ("eventlet.patcher", SimpleNamespace(is_monkey_patched=lambda name: name == "thread")),
    ],
)
def test_replaced_threads_are_refused(module: str, patched: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, module, patched)  # type: ignore[arg-type]  # neither is a dependency
    with pytest.raises(RuntimeError, match="gevent"), connect("tcp://127.0.0.1:1", settings()):
        pass
