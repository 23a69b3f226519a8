"""What a caller does wrong is said at once, by name, and harms nobody else."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from segstore.client import Client, TableKey, connect
from segstore.client.errors import Closed, NoNodeAvailable, NoSuchStream, NoSuchTable
from segstore.client.stream import Revision
from segstore.server import MockSegmentStore
from segstore.server.cluster import MockCluster
from tests.client.support import make_stream, settings
from tests.server.certificates import CERTIFICATE, read_once, write_certificate

pytestmark = pytest.mark.usefixtures("grpc_runs")


@pytest.fixture
async def pravega() -> AsyncIterator[Client]:
    async with MockCluster(watched=False) as mock, connect(f"tcp://{mock.controller_uri}", settings()) as client:
        await make_stream(client)
        yield client


WRONG_EVENTS: list[tuple[Any, Any, str]] = [
    ("text", None, "an event must be bytes, not str"),
    ({}, None, "an event must be bytes, not dict"),
    (b"x", 7, "a routing key is a str, not int"),
    (b"x", b"key", "a routing key is a str, not bytes"),
]


async def test_an_event_or_key_of_another_type_is_named_and_the_writer_goes_on(pravega: Client) -> None:
    async with (
        pravega.event_writer("a", "s") as writer,
        pravega.transaction_writer("a", "s") as transactions,
        transactions.begin() as transaction,
    ):
        for event, key, says in WRONG_EVENTS:
            with pytest.raises(TypeError, match=says):
                await writer.write(event, routing_key=key)
            with pytest.raises(TypeError, match=says):
                await transaction.write(event, routing_key=key)
        await writer.write(b"good", routing_key="key")
        await transaction.write(b"also good", routing_key="key")
    async with pravega.event_reader("a", "s") as events:
        got = [await events.read(), await events.read()]
    assert [each.data for each in got if each] == [b"good", b"also good"]


async def test_what_was_never_opened_says_what_opens_it(pravega: Client) -> None:
    opens = "is not open: `open` or a `with` block opens it"
    with pytest.raises(Closed, match=f"the client {opens}"):
        await connect("tcp://127.0.0.1:1").controller.create_scope("a")
    with pytest.raises(Closed, match=f"the writer of a/s {opens}"):
        await pravega.event_writer("a", "s").write(b"x")
    with pytest.raises(Closed, match=f"the reader of a/s {opens}"):
        await pravega.event_reader("a", "s").read()
    with pytest.raises(Closed, match=f"the byte stream a/s {opens}"):
        await pravega.byte_reader("a", "s").read()
    with pytest.raises(Closed, match=opens):
        await pravega.table("a", "t").get(TableKey(b"k"))


async def test_a_start_is_one_of_the_words(pravega: Client) -> None:
    wrong: Any = "haed"
    with pytest.raises(ValueError, match="'head', 'tail' or a cut, not 'haed'"):
        pravega.event_reader("a", "s", from_=wrong)
    with pytest.raises(ValueError, match="'head', 'tail' or an offset, not 'haed'"):
        pravega.byte_reader("a", "s", from_=wrong)
    with pytest.raises(ValueError, match="or an offset, not -1"):
        pravega.byte_reader("a", "s", from_=-1)
    for start in (wrong, {"s": wrong}):
        with pytest.raises(ValueError, match="'head', 'tail' or a cut, not 'haed'"):
            pravega.reader_group("a", "g", streams=["s"], from_=start)


async def test_what_is_not_there_is_named_as_what_it_is(pravega: Client) -> None:
    stream = pravega.revisioned_stream("a", "none")
    there = Revision("a/none/0.#epoch.0", 0)
    for ask in (
        stream.latest(),
        stream.mark(),
        stream.compare_and_set_mark(None, there),
        stream.write_conditionally(there, b"x"),
        stream.truncate(there),
        stream.write(b"x"),
        stream.aclose(),
    ):
        with pytest.raises(NoSuchStream, match=r"a/none/0\.#epoch\.0 does not exist") as caught:
            await ask
        assert caught.value.segment == "a/none/0.#epoch.0"
    with pytest.raises(NoSuchTable, match="table a/none: the controller reports TABLE_NOT_FOUND") as missing:
        await pravega.table("a", "none").open()
    assert missing.value.stream == "a/none"


async def test_what_is_no_controller_is_said_to_be_none(store: MockSegmentStore) -> None:
    async with connect(f"tcp://{store.host}:{store.port}", settings(request_timeout_ms=300)) as client:
        with pytest.raises(NoNodeAvailable, match="could not be connected to, or does not speak gRPC"):
            await client.controller.create_scope("a")


async def test_a_file_of_authorities_that_will_not_do_is_named(tmp_path: Path) -> None:
    missing, other, empty = (tmp_path / f"{name}.pem" for name in ("missing", "other", "empty"))
    other.write_text("not PEM")
    empty.touch()
    wrong = "it contains no valid certificate in PEM"
    for file, says in ((missing, "No such file"), (other, wrong), (empty, wrong)):
        with pytest.raises(OSError, match=f"{says}.*{file.name}"):
            connect("tls://localhost:1", settings(tls_ca_file=file)).open()


async def test_a_file_of_authorities_is_read_once(tmp_path: Path) -> None:
    with read_once(tmp_path, CERTIFICATE.encode()) as file:
        async with connect("tls://localhost:1", settings(tls_ca_file=file)) as client:
            assert client.pool


async def test_a_controller_that_is_not_trusted_or_has_no_tls_is_said_to_be_so(tmp_path: Path) -> None:
    certificate, key = write_certificate(tmp_path)
    async with (
        MockCluster(watched=False, tls_cert=certificate, tls_key=key) as secure,
        MockCluster(watched=False) as plain,
    ):

        async def says(mock: MockCluster, scheme: str) -> str:
            where = mock.controller_address
            async with connect(f"{scheme}://127.0.0.1:{where[1]}", settings(refused_timeout_ms=1)) as client:
                with pytest.raises(NoNodeAvailable) as caught:
                    await client.controller.create_scope("a")
            return str(caught.value).partition("or does not ")[2]

        found = await asyncio.gather(says(secure, "tls"), says(secure, "tcp"), says(plain, "tls"))
    with_tls = "speak gRPC with TLS and a trusted certificate"
    assert found == [with_tls, "speak gRPC without TLS", with_tls]


async def test_calls_waits_and_new_flows_in_another_event_loop_are_refused(pravega: Client) -> None:
    async with pravega.event_writer("a", "s") as writer, pravega.event_reader("a", "s", from_="tail") as reader:
        uses = {
            "a wait": reader.read,
            "a call": lambda: pravega.controller.create_scope("z"),
            "a list": lambda: anext(pravega.controller.list_scopes()),
            "a new reader": lambda: pravega.event_reader("a", "s").open(),
            "a request": lambda: pravega.segment_requests().info("a/s/0.#epoch.0"),
            "a new read": lambda: pravega.segment_reader("a/s/0.#epoch.0").read(),
        }

        async def elsewhere() -> dict[str, Any]:
            return {name: (await asyncio.gather(use(), return_exceptions=True))[0] for name, use in uses.items()}

        errors = await asyncio.to_thread(asyncio.run, elsewhere())
        here = repr(asyncio.get_running_loop())
        refused = [name for name, error in errors.items() if type(error) is RuntimeError and here in str(error)]
        assert refused == [*uses]
        await writer.write(b"and it still works here")
        assert (await reader.read()) is not None


def test_with_names_async_with_and_the_synchronous_client() -> None:
    with pytest.raises(TypeError, match=r"a Client is entered by `async with`; segstore.client.sync"), connect("a:1"):
        pass
