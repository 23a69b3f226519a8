"""The synchronous classes do what the asyncio classes do, in calls and iterations."""

import asyncio
import inspect
from collections.abc import Sequence

import pytest

from segstore import client as asynchronous
from segstore.client import JsonSerializer, TableConfig, TableKey, TransactionStatus, sync
from segstore.client.errors import BadEvent, BadKeyVersion, Closed, EventTooLarge, NoSuchStream
from segstore.client.sync import Client, Deserialized, StateSynchronizer
from tests.client.support import Sum


def test_events_are_written_and_read(pravega: Client) -> None:
    with pravega.event_writer("a", "s", name="writer") as writer:
        writer.write(b"0", routing_key="k")
        stored = [writer.submit(b"%d" % number, routing_key="k") for number in range(1, 5)]
        writer.flush()
        assert [each.result() for each in stored] == [None] * 4
        assert (writer.name, writer.scope, writer.stats().events, writer.is_connected) == ("writer", "a", 5, True)
    pravega.controller.seal_stream("a", "s")
    with pravega.event_reader("a", "s") as reader:
        assert [each.data for each in reader] == [b"0", b"1", b"2", b"3", b"4"]
        assert reader.read() is None
        assert reader.cut
    with pravega.event_reader("a", "s") as reader:
        assert [event.data for events in reader.slices() for event in events] == [b"0", b"1", b"2", b"3", b"4"]


def test_errors_are_those_of_the_asyncio_client(pravega: Client) -> None:
    with pytest.raises(NoSuchStream, match="a/none"):
        pravega.event_reader("a", "none").open()
    with pravega.event_writer("a", "s") as writer:
        with pytest.raises(EventTooLarge):
            writer.submit(bytes(2 << 30))
        with pytest.raises(Closed, match="the reader of a/s is not open"):
            pravega.event_reader("a", "s").read()


def test_an_error_in_the_block_aborts_a_transaction(pravega: Client) -> None:
    with pravega.transaction_writer("a", "s") as writer:

        def fail() -> None:
            with transaction:
                transaction.write(b"lost")
                raise ZeroDivisionError

        transaction = writer.begin()
        with pytest.raises(ZeroDivisionError):
            fail()
        assert transaction.status() in (TransactionStatus.ABORTING, TransactionStatus.ABORTED)
        with writer.begin() as transaction:
            transaction.submit(b"kept").result()
        assert writer.status(transaction.id) == TransactionStatus.COMMITTED
    with pravega.event_reader("a", "s") as reader:
        event = reader.read()
        assert event.data == b"kept"


def test_groups_tables_bytes_and_logs(pravega: Client) -> None:
    with pravega.event_writer("a", "s") as writer:
        writer.write(b"event")
    with pravega.reader_group("a", "g", streams=["s"]) as group, group.reader("r") as member:
        event = next(member)
        assert (event.data, group.readers(), member.name) == (b"event", ["r"], "r")

    pravega.controller.create_table("a", "t", TableConfig(primary_key_bytes=1))
    with pravega.table("a", "t") as table:
        table.put_all([(TableKey(b"x"), b"1")])
        table.put(TableKey(b"y"), b"2")
        with pytest.raises(BadKeyVersion):
            table.put_if_absent(TableKey(b"y"), b"3")
        entries = table.entries()
        assert [entry.value for entry in entries] == [b"1", b"2"]
        assert entries.token == b"y"

    assert pravega.controller.create_stream("a", "b")
    with pravega.byte_writer("a", "b") as out:
        out.append(b"abc")
    with pravega.byte_reader("a", "b") as given:
        assert (given.read_exactly(2), given.position, given.tail()) == (b"ab", 2, 3)
    assert sorted(pravega.controller.list_streams("a")) == ["_RGg", "b", "s"]


def test_events_are_deserialized(pravega: Client) -> None:
    serializer = JsonSerializer()
    with pravega.event_writer("a", "s") as writer:
        for value in ({"n": 1}, [2]):
            writer.write(serializer.serialize(value), routing_key="k")
        writer.write(b"no JSON", routing_key="k")
    with pravega.event_reader("a", "s") as reader:
        values = Deserialized(reader, serializer)
        assert [next(values)[1], next(values)[1]] == [{"n": 1}, [2]]
        with pytest.raises(BadEvent):
            next(values)


def test_shared_state(pravega: Client) -> None:
    pravega.controller.create_stream("a", "state")
    with pravega.revisioned_stream("a", "state") as log, StateSynchronizer(log, Sum()) as total:
        assert total.initialise(b"1")

        def five(state: int) -> Sequence[bytes]:
            return [b"5"]

        assert total.update(five) == 6
        assert [each.data for each in log.read(log.oldest())]


def test_it_is_used_inside_a_running_loop(pravega: Client) -> None:
    async def notebook() -> bytes:
        with pravega.event_writer("a", "s") as writer:
            writer.write(b"from a cell")
        with pravega.event_reader("a", "s") as reader:
            return next(reader).data

    assert asyncio.run(notebook()) == b"from a cell"


def test_every_public_class_with_coroutines_has_a_synchronous_one() -> None:
    for name in sync.__all__:
        if inspect.isclass(made := getattr(sync, name)):
            assert not [var for var in vars(made).values() if inspect.iscoroutinefunction(var)]
    waiting = {
        name
        for name in asynchronous.__all__
        if inspect.isclass(cls := getattr(asynchronous, name))
        and any(inspect.iscoroutinefunction(getattr(cls, each, None)) for each in dir(cls))
    }
    lower = {"ConnectionPool", "RawClient", "SegmentReader", "SegmentRequests", "SegmentWriter"}
    sources = {"Basic", "Bearer", "Credentials", "FixedStore", "Locations"}
    assert waiting - lower - sources <= set(sync.__all__)


def test_methods_have_the_parameters_and_docstrings_of_the_asyncio_client() -> None:
    submit, original = inspect.signature(sync.EventWriter.submit), inspect.signature(asynchronous.EventWriter.submit)
    assert (submit.parameters, submit.return_annotation) == (original.parameters, "Future[None]")
    assert inspect.signature(sync.EventReader.slices).return_annotation == "Iterator[list[StreamEvent]]"
    assert sync.EventWriter.write.__doc__ == asynchronous.EventWriter.write.__doc__
    assert "Use with `with` and `for`, or `open`, `read` and `close`" in str(sync.EventReader.__doc__)
    assert not hasattr(sync.Transaction, "leave")
    assert "writer:" not in str(sync.Transaction.__doc__)
