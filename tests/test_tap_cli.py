"""`segstore tap` as a process: what it announces, what it records and spoils, how it ends and why it does not begin."""

import asyncio
import re
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

from segstore.cli.serving import pointers
from segstore.client import connect
from segstore.server import MockSegmentStore
from segstore.server.cluster import MockCluster
from segstore.server.controller import Accounts, Authority
from segstore.traces import TraceFile
from segstore.wire.trace import RecordKind
from tests.looped import looped
from tests.ports import held_port
from tests.processes import PATIENCE_S, Running, invoke, refusal, refusal_here, started
from tests.server.support import HELLO, Peer, append, create, set_up
from tests.server.traffic import Port, read_all

TAP = (sys.executable, "-m", "segstore", "tap")


class Tapping(Running):
    """A running `segstore tap`."""

    @property
    def store(self) -> Port:
        host, _, port = str(self.announced["segment_store"]).rpartition(":")
        return Port(host, int(port))

    def end(self, number: signal.Signals = signal.SIGTERM) -> tuple[int, str]:
        """The exit status, and what it said on standard error."""
        self.process.send_signal(number)
        _, errors = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, errors


@contextmanager
def tapping(*options: str) -> Iterator[Tapping]:
    with started([*TAP, *options]) as (process, line):
        yield Tapping(process, line)


def refused(*options: str) -> tuple[int, str]:
    return refusal([*TAP, *options])


def said_by(tap: Tapping, lines: int) -> list[str]:
    """The first lines on standard error that are no log lines."""
    found = (line.rstrip("\n") for line in iter(tap.process.stderr.readline, "") if " INFO " not in line)
    return list(islice(found, lines))


async def test_it_reports_whether_the_upstream_answers_and_how_clients_connect(grpc_runs: None) -> None:
    async with MockCluster() as cluster:
        with tapping("--controller", f"tcp://{cluster.controller_uri}") as tap:
            said = await asyncio.to_thread(said_by, tap, 6)
            (controller,) = re.findall(r"controller (\S+)", tap.line)
            where = cluster.controller_uri, cluster.stores[0].address
            assert said[0] == (
                f"Behind the tap: the controller at {where[0]} answers; "
                f"the store at {where[1]} answers (wire version 17)."
            )
            end = "the cluster behind it stays as it is"
            assert said[1:] == pointers(controller, tls=False, passwords=False, end=end).splitlines()
            assert (await asyncio.to_thread(tap.end))[0] == 0


async def test_a_controller_that_requires_credentials_is_pointed_at_with_them(grpc_runs: None) -> None:
    accounts = Accounts(["admin:1111_aaaa:prn::*,READ_UPDATE"])
    authority = Authority(accounts, now_s=time.time)
    async with MockCluster(authority=authority) as cluster:
        with tapping("--controller", f"tcp://{cluster.controller_uri}") as tap:
            said = await asyncio.to_thread(said_by, tap, 3)
            assert said[0].endswith("answers (it requires credentials).")
            assert "auth_enabled=True" in said[2]
            assert (await asyncio.to_thread(tap.end))[0] == 0


async def test_its_http_port_is_announced_and_ctl_steers_it(tmp_path: Path) -> None:
    async with MockSegmentStore() as mock:
        with tapping("--store", f"{mock.host}:{mock.port}", "--http-port", "0", "--announce", "json") as tap:
            url = f"http://{tap.announced['http']}"

            async def ctl(*given: str) -> str:
                return (await asyncio.to_thread(invoke, "ctl", "--url", url, *given)).output

            assert await ctl("keep") == "last: 0\n"
            assert "name: run\n" in await ctl("record", "start", "run")
            where: object = tap.store
            async with await Peer.connect(where) as peer:  # type: ignore[arg-type]  # it asks for host and port alone
                await peer.ask(HELLO, create(), set_up(), append(1))
                assert (await ctl("requests", "--limit", "1")).splitlines()[1].split()[2] == "APPEND_BLOCK_END"
                assert await ctl("verify", "type = APPEND_BLOCK_END", "--exactly", "1") == "count: 1\n"
                assert (await ctl("segments")).startswith("segstore: a tap has no stores: ")
                assert await ctl("connections", "cut") == "connections: 1\n"
                assert await peer.closed() == b""
            assert "running: false\n" in await ctl("record", "stop", "run")
            assert await ctl("record", "download", "run", str(tmp_path / "run.jsonl")) == ""
            assert (await asyncio.to_thread(tap.end))[0] == 0
    with TraceFile(tmp_path / "run.jsonl") as trace:
        kinds = [record.kind for record in trace.records()]
    assert (kinds[0], kinds[-1], kinds.count(RecordKind.FRAME)) == (RecordKind.OPEN, RecordKind.CLOSE, 8)


async def test_a_client_works_through_it_and_a_signal_while_it_is_busy_leaves_a_whole_recording(
    tmp_path: Path, grpc_runs: None
) -> None:
    path = tmp_path / "run.wtrace"
    async with MockCluster(2) as cluster:
        options = ("--controller", f"tcp://{cluster.controller_uri}", "--record", str(path), "--announce", "json")
        with tapping(*options) as tap:
            async with connect(str(tap.announced["controller"])) as pravega:
                await pravega.controller.create_scope("shop")
                await pravega.controller.create_stream("shop", "orders", segments=4)
                written = asyncio.Event()

                async def write_for_ever() -> None:
                    async with pravega.event_writer("shop", "orders") as writer:
                        while True:
                            await writer.write(b"tea", routing_key="k")
                            written.set()

                busy = asyncio.create_task(write_for_ever())
                await asyncio.wait_for(written.wait(), PATIENCE_S)
                status, _ = await asyncio.to_thread(tap.end)
                busy.cancel()
                await asyncio.gather(busy, return_exceptions=True)
        assert status == 0
    records = read_all(path)
    opened = [each.connection for each in records if each.kind is RecordKind.OPEN]
    assert sorted(opened) == sorted(each.connection for each in records if each.kind is RecordKind.CLOSE)
    assert sum(record.kind is RecordKind.FRAME for record in records) > 4


async def test_an_upstream_that_does_not_answer_is_reported_and_clients_are_told_why() -> None:
    with held_port() as port, tapping("--store", f"127.0.0.1:{port}", "--announce", "json") as tap:
        (said,) = await asyncio.to_thread(said_by, tap, 1)
        assert f"Behind the tap: the store at 127.0.0.1:{port} does not answer: Connection refused. " in said
        assert said.endswith(" The tap forwards to it once it does.")
        where: object = tap.store
        async with await Peer.connect(where) as peer:  # type: ignore[arg-type]  # it asks for host and port alone
            assert await peer.closed() == b""
        status, errors = await asyncio.to_thread(tap.end)
    assert status == 0
    assert f"the store at 127.0.0.1:{port} cannot be reached: " in errors


@looped(
    ("options", "said"),
    [
        ((), "a tap needs a controller or a store to forward to"),
        (("--controller", "tcp://a:1,b:2"), "tcp://a:1,b:2: a tap has one controller, not 2"),
        (("--store", "a:1", "--ca", __file__), "ca goes with TLS, as in tls://host:port"),
        (("--store", "a:1", "--record", "run.txt"), "run.txt: a trace ends in .wtrace (for machines), .jsonl"),
        (("--store", "a:1", "--http-token-file", __file__), "http_token_file needs http_port"),
    ],
)
def test_options_that_do_not_do_are_refused_in_one_sentence(options: tuple[str, ...], said: str) -> None:
    status, errors = refusal_here("tap", *options)
    assert status == 2
    assert errors.startswith("segstore tap: ")
    assert said in errors
    assert errors.count("\n") == 1


def test_a_failed_start_says_why(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        status, errors = refused("--controller", "a:1", "--controller-port", port)
        assert status == 1
        assert f"port {port} on 127.0.0.1, for the controller, is taken by another process" in errors
    there = tmp_path / "run.wtrace"
    there.write_text("")
    status, errors = refused("--store", "a:1", "--record", str(there))
    assert (status, there.read_text()) == (1, "")
    assert "a recording never overwrites a file" in errors
