"""What a client does that has a password, or trusts a certificate; who it is says the environment."""

from __future__ import annotations

from typing import Any

from pravega_client import StreamManager

from common import Reading, attempt, wrong_orders


async def write_and_read(
    uri: str, keys: int, per_key: int, *, tls: bool, auth: bool = True, large: int = 0
) -> dict[str, Any]:
    made = StreamManager(uri, auth_enabled=auth, tls_enabled=tls)
    made.create_scope("a")
    made.create_stream("a", "s", 3)
    writer = made.create_writer("a", "s", 100)
    for number in range(per_key):
        for key in range(keys):
            writer.write_event(f"k{key}:{number}:", routing_key=f"k{key}")
    if large:
        writer.write_event_bytes(bytes(large))
    writer.flush()
    transactions = made.create_transaction_writer("a", "s", 1)
    transaction = transactions.begin_txn()
    transaction.write_event("in a transaction")
    transaction.commit()
    reading = Reading(made.create_reader_group("g", "a", "s").create_reader("r"))
    await reading.until(keys * per_key + 1 + bool(large))
    plain = [event for event in reading.events if event[:1] == b"k"]
    return {
        "events": len(plain) + sum(len(event) == large for event in reading.events),
        "wrong": wrong_orders(plain, keys, per_key),
        "transaction": reading.events.count(b"in a transaction"),
    }


def try_to_write(uri: str) -> dict[str, Any]:
    made = StreamManager(uri, auth_enabled=True)
    made.create_scope("a")
    made.create_stream("a", "s", 1)

    def write() -> None:
        writer = made.create_writer("a", "s")
        writer.write_event("x")
        writer.flush()

    return attempt(write)


def connect(uri: str) -> bool:
    """Make a scope."""
    return bool(StreamManager(uri, auth_enabled=False, tls_enabled=True).create_scope("a"))
