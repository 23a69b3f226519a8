"""Transactions: commit, abort, ping, the end of a lease, another handle to the same one."""

from __future__ import annotations

from threading import Event
from typing import Any

from pravega_client import StreamManager

from common import Reading, attempt, manager, say, say_and_wait, texts, wrong_orders


async def life(uri: str) -> dict[str, Any]:
    made = manager(uri, "a", s=2)
    writer = made.create_transaction_writer("a", "s", 1)
    committed, aborted = writer.begin_txn(), writer.begin_txn()
    for number in range(100):
        committed.write_event(f"committed {number}", routing_key=str(number))
        aborted.write_event_bytes(b"aborted", routing_key=str(number))
    result: dict[str, Any] = {"open": [committed.is_open(), aborted.is_open()]}
    other = writer.get_txn(committed.get_txn_id())
    result["by its id"] = [other.get_txn_id() == committed.get_txn_id(), other.is_open()]
    plain = made.create_writer("a", "s")
    plain.write_event("outside")
    plain.flush()
    aborted.abort()
    committed.commit()
    result["after"] = [committed.is_open(), aborted.is_open(), writer.get_txn(committed.get_txn_id()).is_open()]
    result["again"] = [attempt(call) for call in (committed.commit, committed.abort, aborted.commit)]
    result["late write"] = attempt(lambda: committed.write_event("late"))
    timed = writer.begin_txn()
    timed.write_event("timed")
    timed.commit_timestamp(1_700_000_000)
    writer.begin_txn().commit()
    group = made.create_reader_group("g", "a", "s")
    reading = Reading(group.create_reader("r"), group)
    made.seal_stream("a", "s")
    await reading.until(102)
    result["segments ended"] = await reading.until_the_end()
    result["read"] = sorted(texts(reading.events)) == sorted(
        ["outside", "timed", *(f"committed {n}" for n in range(100))]
    )
    result["of a missing stream"] = attempt(made.create_transaction_writer("a", "no", 1).begin_txn)
    return result


async def large(uri: str, scope: str, stream: str, keys: int, per_key: int) -> dict[str, Any]:
    """Many transactions, one after the other, on a stream that is made here."""
    made = manager(uri, scope, **{stream: 3})
    writer = made.create_transaction_writer(scope, stream, 7)
    for number in range(per_key):
        transaction = writer.begin_txn()
        for key in range(keys):
            transaction.write_event(f"k{key}:{number}:", routing_key=f"k{key}")
        transaction.commit()
    reading = Reading(made.create_reader_group(f"of-{stream}", scope, stream).create_reader("r"))
    await reading.until(keys * per_key)
    return {"events": len(reading.events), "wrong": wrong_orders(reading.events, keys, per_key)}


def leave_open(uri: str, scope: str, stream: str) -> None:
    """Write into a transaction, say its id, and wait to be killed."""
    made = StreamManager(uri)
    writer = made.create_transaction_writer(scope, stream, 2)
    transaction = writer.begin_txn()
    for number in range(100):
        transaction.write_event(f"never seen {number}", routing_key=str(number))
    say(str(transaction.get_txn_id()))
    Event().wait()


def outlive_the_lease(uri: str, scope: str, stream: str) -> dict[str, Any]:
    """Ask for a lease that the controller cuts short, and come back after its end."""
    made = StreamManager(uri)
    writer = made.create_transaction_writer(scope, stream, 3)
    transaction = writer.begin_txn()
    transaction.write_event("never seen")
    before = transaction.is_open()
    say_and_wait("open")
    return {
        "before": before,
        "after": transaction.is_open(),
        "by its id": writer.get_txn(transaction.get_txn_id()).is_open(),
        "abort": attempt(transaction.abort),
    }


async def commit_across_a_scale(uri: str, scope: str, stream: str, group: str = "across") -> dict[str, Any]:
    """A transaction is begun before the stream is scaled, and committed after."""
    made = StreamManager(uri)
    writer, plain = made.create_transaction_writer(scope, stream, 4), made.create_writer(scope, stream)
    transaction = writer.begin_txn()
    for number in range(50):
        transaction.write_event(f"in {number}", routing_key=str(number))
    say_and_wait("written")
    for number in range(50):
        plain.write_event(f"outside {number}", routing_key=str(number))
    plain.flush()
    open_before = transaction.is_open()
    transaction.commit()
    for number in range(50):
        plain.write_event(f"after {number}", routing_key=str(number))
    plain.flush()
    shared = made.create_reader_group(group, scope, stream)
    reading = Reading(shared.create_reader("r"), shared)
    made.seal_stream(scope, stream)
    await reading.until(150)
    ends = await reading.until_the_end()
    found = sorted(texts(reading.events))
    return {
        "open": [open_before, transaction.is_open()],
        "read": found == sorted(f"{kind} {n}" for kind in ("in", "outside", "after") for n in range(50)),
        "count": len(found),
        "segments ended": ends,
    }


def stay(uri: str, scope: str, stream: str) -> bool:
    """Keep a transaction open until told to commit it; meanwhile the client pings."""
    made = StreamManager(uri)
    writer = made.create_transaction_writer(scope, stream, 5)
    transaction = writer.begin_txn()
    transaction.write_event("kept")
    say_and_wait("open")
    still = transaction.is_open()
    transaction.commit()
    return bool(still)


def look_by_id(uri: str, scope: str, stream: str, identifier: str) -> dict[str, Any]:
    """Look at a transaction that somebody else has begun, before and after it ends.

    A handle that this client got by an id can only look: it refuses to write and to commit ("closed").
    """
    made = StreamManager(uri)
    writer = made.create_transaction_writer(scope, stream, 6)
    transaction = writer.get_txn(int(identifier))
    before = transaction.is_open()
    refused = attempt(lambda: transaction.write_event("refused"))
    say_and_wait("seen")
    return {"before": before, "write": refused["fails"], "after": transaction.is_open()}
