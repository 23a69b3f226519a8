"""Servers on a thread: what is looked at, waited for and stopped from elsewhere."""

from __future__ import annotations

import asyncio
import gc
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from operator import attrgetter, methodcaller
from pathlib import Path
from typing import IO, Any

import httpx
import pytest

from segstore.server.cluster import MockCluster
from segstore.server.faults import FaultFunctionError, FaultRequest, NoFaults, Seen
from segstore.server.faults.observe import NotSeen
from segstore.server.store import NoSuchSegment
from segstore.server.toxics import NoSuchToxic
from segstore.testing import (
    InAnotherProcess,
    RunningServer,
    ServerProcess,
    Servers,
    ServerThread,
    WouldBlock,
    hosts,
    in_a_thread,
)
from segstore.testing.on_the_loop import Served, start_cluster
from segstore.traces import TraceFile
from segstore.wire import Command, DataAppended, FrameDecoder, ReadSegment, SegmentRead, encode
from tests.looped import looped
from tests.server.support import HELLO, SEGMENT, append, create, event, set_up

TRACE = Path(__file__).parent.parent / "fixtures" / "traces" / "byte_stream.jsonl"
PATIENCE_S = 60.0

pytestmark = pytest.mark.usefixtures("grpc_runs")


@pytest.fixture
def thread() -> Iterator[ServerThread]:
    with ServerThread() as made:
        yield made


@pytest.fixture(scope="module")
def process() -> Iterator[ServerProcess]:
    with ServerProcess() as made:
        yield made


@pytest.fixture(params=["thread", "process"])
def servers(request: pytest.FixtureRequest, thread: ServerThread, process: ServerProcess) -> Servers:
    """Both kinds, for what is the same with both."""
    return thread if request.param == "thread" else process


class Client:
    """A client that blocks."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._socket = socket.create_connection(address, PATIENCE_S)
        self._decoder = FrameDecoder()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *error: object) -> None:
        self._socket.close()

    def send(self, *commands: Command) -> None:
        self._socket.sendall(b"".join(map(encode, commands)))

    def ask(self, *commands: Command) -> list[Command]:
        self.send(*commands)
        return self.receive(len(commands))

    def receive(self, count: int) -> list[Command]:
        found: list[Command] = []
        while len(found) < count:
            data = self._socket.recv(1 << 16)
            if not data:
                raise EOFError(f"{len(found)} replies, then the end")
            found += self._decoder.feed(data)
        return found


def write(server: RunningServer, *events: bytes) -> None:
    with Client(server.address) as client:
        client.ask(HELLO, create(), set_up())
        for number, data in enumerate(events, 1):
            assert isinstance(client.ask(append(number, event(data)))[0], DataAppended)


def test_a_client_that_blocks_is_served_and_the_state_can_be_looked_at(servers: Servers) -> None:
    server = servers.serve()
    write(server, b"a", b"bb")
    assert server.events(SEGMENT) == [b"a", b"bb"]
    assert server.read(SEGMENT) == event(b"a") + event(b"bb")
    assert server.segments() == [SEGMENT]
    assert server.segments(with_indexes=True) == [SEGMENT, f"{SEGMENT}#index"]
    assert [request.type_name for request in server.requests("type ~ *APPEND*")] == [
        "SETUP_APPEND",
        "APPEND_BLOCK_END",
        "APPEND_BLOCK_END",
    ]
    assert server.call(attrgetter("settings.store.containers")) == 4
    there = "there are 'scope/stream/0.#epoch.0'"
    with pytest.raises(NoSuchSegment, match=f"segment 'scope/stream/9.#epoch.0' does not exist; {there}"):
        server.events("scope/stream/9.#epoch.0")


def test_bytes_that_are_no_events_are_said_to_be_none(servers: Servers) -> None:
    server = servers.serve()
    with Client(server.address) as client:
        client.ask(HELLO, create(), set_up())
        client.ask(append(1, event(b"a") + b"rest"))
    with pytest.raises(ValueError, match="no event at byte 9 of the 13"):
        server.events(SEGMENT)


@contextmanager
def held_ack(servers: Servers) -> Iterator[tuple[RunningServer, Client]]:
    """A server that holds the acknowledgement of its first append, and the client that waits for it."""
    server = servers.serve()
    server.faults.add("type = APPEND_BLOCK_END", do="hold after", name="ack")
    with Client(server.address) as client:
        client.ask(HELLO, create(), set_up())
        client.send(append(1, b"x"))
        server.faults.wait_held("ack")
        yield server, client


def test_what_is_returned_no_longer_changes(servers: Servers) -> None:
    with held_ack(servers) as (server, client):
        (seen,) = server.requests("type = APPEND_BLOCK_END")
        assert seen.replied_s is None
        assert server.faults.release("ack") == 1
        client.receive(1)
        assert server.wait_for("type = APPEND_BLOCK_END", stage="replied").replied_s is not None
    assert seen.replied_s is None


def test_a_rule_of_a_running_server_is_disabled_and_enabled(servers: Servers) -> None:
    with held_ack(servers) as (server, client):
        server.faults.disable("ack")
        client.receive(1)
        client.ask(append(2, b"y"))
        server.faults.enable("ack")
        client.send(append(3, b"z"))
        server.faults.wait_held("ack")
        assert server.faults.rules == ["ack"]


def test_a_wait_ends_with_the_event_or_at_its_timeout(servers: Servers) -> None:
    server = servers.serve()
    writes = threading.Thread(target=write, args=(server, b"a", b"b", b"c"))
    writes.start()
    assert server.wait_for("type = APPEND_BLOCK_END", count=3, timeout_s=PATIENCE_S).event_number == 3
    writes.join(PATIENCE_S)
    mark = server.mark()
    with pytest.raises(NotSeen):
        server.wait_for("type = APPEND_BLOCK_END", since=mark, timeout_s=0.01)


async def test_a_coroutine_waits_by_await_and_is_refused_to_block(servers: Servers) -> None:
    server = servers.serve()
    server.faults.add("type = APPEND_BLOCK_END", do="hold", name="append")
    writes = threading.Thread(target=write, args=(server, b"a"))
    writes.start()
    await server.aio.wait_held("append", timeout_s=PATIENCE_S)
    with pytest.raises(WouldBlock, match=r"use: await server\.aio\.wait_for"):
        server.wait_for("type = APPEND_BLOCK_END")
    with pytest.raises(WouldBlock, match=r"use: await server\.aio\.wait_held"):
        server.faults.wait_held("append")
    server.faults.release("append")
    assert (await server.aio.wait_for("type = APPEND_BLOCK_END")).event_number == 1
    seen: Seen = await server.aio.run(methodcaller("wait_for", "type = HELLO", stage="received"))
    assert seen.type_name == "HELLO"
    writes.join(PATIENCE_S)


def test_toxics_of_a_running_server_are_added_listed_and_removed(servers: Servers) -> None:
    server = servers.serve()
    with Client(server.address) as client:
        client.ask(HELLO)
        assert server.faults.toxics.add("timeout", timeout=0, name="silence") == "silence"
        assert [(tally.name, tally.connections) for tally in server.faults.toxics.tallies()] == [("silence", 1)]
        with pytest.raises(ValueError, match="rate: there is no such key"):
            server.faults.toxics.add("latency", rate=5)
        with pytest.raises(NoSuchToxic, match="no toxic has the name 'noise'; there are 'silence'"):
            server.faults.toxics.clear("noise")
        server.faults.toxics.clear()
        with pytest.raises(EOFError, match="0 replies, then the end"):
            client.receive(1)
    assert server.faults.toxics.tallies() == []


def test_rules_are_added_looked_at_and_cleared(servers: Servers, tmp_path: Path) -> None:
    server, path = servers.serve(), tmp_path / "faults.yaml"
    path.write_text("rules:\n  - {name: second, match: type = MERGE_SEGMENTS, do: drop}\n")
    server.faults.add("type = CREATE_SEGMENT", do="SegmentAlreadyExists", name="first")
    server.faults.load(path)
    server.faults.round_trip_ms = 1
    assert (server.faults.rules, server.faults.round_trip_ms) == (["first", "second"], 1)
    with Client(server.address) as client:
        assert [each.type_name for each in client.ask(HELLO, create())] == ["HELLO", "SEGMENT_ALREADY_EXISTS"]
    assert [decision.rule for decision in server.faults.decisions] == ["first"]
    assert server.faults.held("first") == 0
    assert [line.partition(":")[0] for line in server.faults.unmatched()] == ["fault 'second' has matched nothing"]
    server.faults.clear()
    assert server.faults.rules == []
    from_start = servers.serve(faults=path)
    assert from_start.faults.rules == ["second"]


def test_the_seed_is_set_where_the_rules_are_and_an_unknown_attribute_is_refused(servers: Servers) -> None:
    faults = servers.serve().faults
    assert faults.seed == 0
    faults.seed = 7
    assert faults.seed == 7
    with pytest.raises(ValueError, match=r"^seed: a whole number is needed$"):
        faults.seed = "x"  # type: ignore[assignment]
    with pytest.raises(AttributeError, match="roundtrip_ms"):
        faults.roundtrip_ms = 2000  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="rate"):
        faults.toxics.rate = 1  # type: ignore[attr-defined]


def test_open_connections_are_reported_in_their_order(servers: Servers) -> None:
    running = servers.serve(stores=2)
    addresses = running.addresses
    with ExitStack() as opened:
        for number in range(25):
            client = opened.enter_context(Client(addresses[number % len(addresses)]))
            client.ask(HELLO)
        title, *lines = running.report().partition("open connections ")[2].splitlines()
    assert title == "(last 20 of 25):"
    assert [line.split()[:2] for line in lines] == [["connection", str(number)] for number in range(6, 26)]


def test_a_controller_is_started_when_its_address_is_asked_for(thread: ServerThread) -> None:
    server = thread.serve(controller={"lease_cap_ms": 1000})
    assert server.call(lambda cluster: cluster.controller) is None
    first = server.controller_uri
    assert first == server.controller_uri
    assert server.call(lambda cluster: cluster.controller.config.lease_cap_ms if cluster.controller else 0) == 1000
    host, _, port = first.rpartition(":")
    socket.create_connection((host, int(port)), PATIENCE_S).close()


@pytest.mark.parametrize("first", ["host", "admin_port", "controller_uri", "rest_url", "http_url"])
def test_every_address_works_whichever_is_asked_for_first(thread: ServerThread, first: str) -> None:
    server = thread.serve(admin_port=0, rest_port=0, http_port=0)
    address = getattr(server, first)
    if first == "rest_url":
        assert httpx.post(f"{address}/v1/scopes", json={"scopeName": "a"}, trust_env=False, timeout=60).is_success
    elif first == "http_url":
        assert httpx.put(f"{address}/v1/streams/a/b", trust_env=False, timeout=60).is_success
    else:
        ports = {"host": server.port, "admin_port": address, "controller_uri": str(address).rpartition(":")[2]}
        socket.create_connection((server.host, int(ports[first])), PATIENCE_S).close()
    with pytest.raises(RuntimeError, match="admin_port=0"):
        _ = thread.serve().admin_port


def test_the_host_to_listen_on_can_be_chosen(servers: Servers) -> None:
    server = servers.serve(host="127.0.0.2")
    tap = servers.tap(store=f"127.0.0.2:{server.port}", host="127.0.0.2")
    trace = servers.replay(TRACE, host="127.0.0.2")
    assert [each.host for each in (server, tap, trace)] == ["127.0.0.2"] * 3
    with Client(tap.address) as client:
        assert client.ask(HELLO)[0].type_name == "HELLO"


def test_a_setting_that_there_is_not_is_refused(servers: Servers) -> None:
    with pytest.raises(ValueError, match="container"):
        servers.serve(stores=9, containers=4)
    with pytest.raises(ValueError, match=r"aut_key: there is no such option \(auth_key\?\)"):
        servers.serve(aut_key="x")
    with pytest.raises(ValueError, match=r"mood: there is no such option \(mode\?\)"):
        servers.replay([], mood="match")
    with pytest.raises(NoFaults):
        servers.serve(watched=False).faults.add("type = HELLO", do="drop")


def test_a_server_that_is_stopped_is_gone_but_can_be_looked_at(servers: Servers) -> None:
    server = servers.serve()
    write(server, b"a")
    server.stop()
    server.stop()
    with pytest.raises(ConnectionRefusedError):
        Client(server.address)
    assert server.events(SEGMENT) == [b"a"]


@looped(
    "call",
    [
        lambda server: server.create_stream("a", "b"),
        lambda server: server.write_events("a/b", [b"x"]),
        lambda server: server.snapshot("a"),
        lambda server: server.restore("a"),
        lambda server: server.reset(),
        lambda server: server.wait_for(),
        lambda server: server.faults.add("type = HELLO", do="drop"),
        lambda server: server.faults.load("faults.yaml"),
        lambda server: server.faults.enable("a"),
        lambda server: server.faults.disable("a"),
        lambda server: server.faults.wait_held("a"),
        lambda server: setattr(server.faults, "round_trip_ms", 1),
        lambda server: server.faults.toxics.add("latency", latency=1),
        lambda server: asyncio.run(server.aio.wait_for()),
        lambda server: asyncio.run(server.aio.wait_held("a")),
    ],
)
def test_what_needs_a_running_server_is_refused_by_a_stopped_one(
    thread: ServerThread, call: Callable[[RunningServer], object]
) -> None:
    server = thread.serve()
    server.stop()
    with pytest.raises(RuntimeError, match=r"^this server was stopped$"):
        call(server)


def test_a_stopped_server_starts_no_controller_and_keeps_the_address_of_one(servers: Servers) -> None:
    server = servers.serve()
    server.stop()
    with pytest.raises(RuntimeError, match=r"^this server was stopped, and its controller had not been started$"):
        _ = server.controller_uri
    server = servers.serve()
    uri = server.controller_uri
    server.stop()
    assert server.controller_uri == uri


def test_a_thread_stops_its_servers_and_can_be_stopped_again() -> None:
    before = threading.active_count()
    thread = ServerThread()
    thread.start()
    server = thread.serve()
    _ = server.controller_uri
    with TraceFile(TRACE) as opened:
        trace = thread.replay(list(opened.records()))
    thread.stop()
    thread.stop()
    assert threading.active_count() == before
    for address in (server.address, trace.address):
        with pytest.raises(ConnectionRefusedError):
            Client(address)
    with pytest.raises(RuntimeError, match="was stopped"):
        server.segments()


def test_a_thread_or_process_that_does_not_answer_is_named(servers: Servers) -> None:
    server, kind = servers.serve(), "thread" if servers.in_process else "process"
    with pytest.raises(TimeoutError, match=rf"^the servers' {kind} did not answer within 0\.1 s$"):
        server.run(MockCluster.wait_for, timeout_s=0.1)


@looped("function", [lambda given: given + 1, lambda given: 1 // (given - 41)])
async def test_what_blocks_runs_in_a_thread_of_its_own(function: Callable[[int], int]) -> None:
    if function(0) == 1:
        assert await in_a_thread(function, 41) == 42
    else:
        with pytest.raises(ZeroDivisionError):
            await in_a_thread(function, 41)


def test_a_trace_answers_and_what_it_does_not_hold_is_a_problem(servers: Servers) -> None:
    with TraceFile(TRACE) as opened:
        records = list(opened.records())
    trace = servers.replay(records, mode="match")
    with Client(trace.address) as client:
        hello, found = client.ask(HELLO, ReadSegment("scope/stream/0.#epoch.0", 0, 1 << 20, "", 7))
        assert hello.type_name == "HELLO"
        assert trace.unused()["TRUNCATE_SEGMENT"] == 1
        if not isinstance(found, SegmentRead):
            assert [problem.request for problem in trace.problems] == ["READ_SEGMENT"]
        client.ask(ReadSegment("scope/other/0.#epoch.0", 0, 8, "", 8))
    assert trace.problems[-1].request == "READ_SEGMENT"
    assert (trace.host, trace.port) == trace.address


def test_a_function_of_a_rule_runs_on_the_servers_thread_and_its_error_is_raised_by_stop() -> None:
    threads: list[str] = []
    with ServerThread() as servers:
        server = servers.serve()

        @server.fault("type = APPEND_BLOCK_END", nth=1)
        async def refused(request: FaultRequest) -> None:
            threads.append(threading.current_thread().name)
            request.answer("SegmentIsSealed")

        @server.fault("type = READ_SEGMENT")
        def broken(request: FaultRequest) -> None:
            raise ZeroDivisionError("by zero")

        with Client(server.address) as client:
            client.ask(HELLO, create(), set_up())
            assert [each.type_name for each in client.ask(append(1))] == ["SEGMENT_IS_SEALED"]
            client.send(ReadSegment(SEGMENT, 0, 4, "", 1))
            with pytest.raises(EOFError):
                client.receive(1)
        assert threads == ["segstore servers"]
        with pytest.raises(FaultFunctionError, match="fault 'broken' failed at request 5, READ_SEGMENT: ZeroDivision"):
            server.stop()
        server.stop()
        assert server.faults.rules == ["refused", "broken"], "it can still be looked at"


def test_what_cannot_be_sent_to_another_process_is_refused_with_what_to_do(process: ServerProcess) -> None:
    server = process.serve()
    with pytest.raises(InAnotherProcess, match="process=False"):
        server.call(lambda cluster: len(cluster.stores))
    with pytest.raises(InAnotherProcess, match="returns cannot be sent"):
        server.call(attrgetter("stores"))
    with pytest.raises(InAnotherProcess, match="a module that can be imported"):
        server.call(of_this_module)
    with pytest.raises(InAnotherProcess, match="process=False"):
        server.fault("type = HELLO")(lambda request: request.close())
    assert server.segments() == []


def of_this_module(cluster: MockCluster) -> int:
    return len(cluster.stores)


def test_errors_keep_their_kind_their_text_and_their_facts(process: ServerProcess) -> None:
    server = process.serve()
    with pytest.raises(NoSuchSegment) as missing:
        server.read(SEGMENT)
    assert missing.value.segment == SEGMENT
    assert str(missing.value) == f"segment {SEGMENT!r} does not exist; there are no segments"
    with pytest.raises(NotSeen) as waited:
        server.wait_for("type = HELLO", timeout_s=0.01, count=2)
    assert (waited.value.count, waited.value.found) == (2, 0)
    assert str(waited.value).startswith("0 of 2 requests with type = HELLO were applied")
    with pytest.raises(FileNotFoundError, match=r"gone\.jsonl"):
        process.replay(Path("/gone.jsonl"))


def test_a_server_without_references_is_forgotten_by_its_host(servers: Servers) -> None:
    server = servers.serve()
    key, other = server._key, servers.serve()
    server.stop()
    assert servers.run(Served.segments, key, True) == []
    del server
    gc.collect()
    assert other.segments() == []  # the next call, with which the other process hears of it
    with pytest.raises(KeyError):
        servers.run(Served.segments, key, True)


@looped("is_waited_for", [False, True])
def test_a_process_is_gone_when_it_is_stopped_and_says_so_if_it_went_before(is_waited_for: bool) -> None:
    servers = ServerProcess()
    servers.start()
    server = servers.serve()
    servers.stop()
    servers.stop()
    with pytest.raises(ConnectionRefusedError):
        Client(server.address)
    with pytest.raises(RuntimeError, match="was stopped"):
        server.segments()
    with ServerProcess() as servers:
        server = servers.serve()
        server.faults.add("type = HELLO", do="drop")
        servers._process.kill()
        if is_waited_for:  # then the request cannot even be sent
            servers._process.wait()
        with pytest.raises(RuntimeError, match="process has ended"):
            server.segments()


def test_a_process_that_is_stopped_between_two_answers_is_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    servers, receive, reads_on = ServerProcess(), hosts._receive, threading.Event()

    def received(pipe: IO[bytes]) -> Any:
        if servers._process is None:
            reads_on.set()
        answer = receive(pipe)
        servers._process = None  # as `stop` does in its thread
        return answer

    monkeypatch.setattr(hosts, "_receive", received)
    servers.start()
    process = servers._process
    servers.create(start_cluster)
    assert reads_on.wait(hosts.PATIENCE_S)
    servers._process = process
    servers.stop()


def test_a_tap_is_looked_at_and_cut_as_a_server_is(servers: Servers, tmp_path: Path) -> None:
    server = servers.serve()
    path = tmp_path / "run.wtrace"
    tap = servers.tap(store=f"{server.host}:{server.port}", record=path, http_port=0)
    tap.faults.add("type = KEEP_ALIVE", do="drop", name="silent")
    with Client((tap.host, tap.port)) as client:
        assert len(client.ask(HELLO, create(), set_up(), append(1))) == 4
        assert tap.wait_for("type = APPEND_BLOCK_END").reply == "DATA_APPENDED"
        assert [request.type_name for request in tap.requests()] == [each.type_name for each in server.requests()]
        (connection,) = httpx.get(f"{tap.http_url}/v1/connections", trust_env=False).json()["connections"]
        assert connection["number"] == tap.requests()[0].connection
        assert tap.cut() == 1
        with pytest.raises((EOFError, ConnectionError)):
            client.receive(1)
    assert tap.faults.unmatched() == ["fault 'silent' has matched nothing: name 'silent', match 'type = KEEP_ALIVE'"]
    tap.stop()
    tap.stop()
    with TraceFile(path) as trace:
        assert len(list(trace.records())) == 10
    server.stop()


def test_a_tap_before_a_controller_asks_it_for_a_store(servers: Servers) -> None:
    server = servers.serve()
    tap = servers.tap(f"tcp://{server.controller_uri}")
    with Client(tap.address) as client:
        assert client.ask(HELLO)[0].type_name == "HELLO"
    assert tap.addresses == [tap.address] != server.addresses
    nowhere = servers.tap("tcp://127.0.0.1:1")
    with pytest.raises(LookupError, match="knows of no store"):
        _ = nowhere.address
    nowhere.stop()
    assert tap.controller_uri != server.controller_uri
    with pytest.raises(ValueError, match="needs a controller or a store"):
        servers.tap()
    tap.stop()
    server.stop()
