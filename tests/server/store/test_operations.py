"""Operations as bytes: each comes back equal, and foreign bytes are refused."""

from uuid import UUID

import msgspec
import pytest

from segstore.server.durable.committer import records
from segstore.server.store import Buffer
from segstore.server.store import operations as ops
from tests.looped import looped

W = UUID("00000000-0000-0001-0000-00000000000a")

ALL: list[ops.Operation] = [
    ops.SegmentCreated("s", 128, ((W, -(1 << 63)),), 17),
    ops.Appended("s", b"data", 2, 18, W, 7),
    ops.Appended("s", b"", 0, 18),
    ops.AttributesUpdated("s", ((W, 5), (W, (1 << 63) - 1)), 19),
    ops.Sealed("s", 20),
    ops.Truncated("s", 5),
    ops.SegmentMerged("s", "t", ((W, 1),), 21),
    ops.SegmentMerged("s", "t", (), 21, b"bytes"),
    ops.SegmentDeleted("s", retired=True),
    ops.IndexAppended("s#index", b"x" * 24, 3, 22),
    ops.TableKeysForgotten("t", (b"k", b""), 23),
]


@looped("operation", ALL)
def test_a_decoded_operation_equals_the_encoded_one(operation: ops.Operation) -> None:
    assert ops.decode(ops.encode(operation)) == operation


def test_all_operations_are_tried() -> None:
    assert {type(operation) for operation in ALL} == set(ops.Operation.__args__)


@looped("data", [b"", b"\x90", b"\x91\xa7unknown", b"\xff", ops.encode(ALL[0])[:-1]])
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        ops.decode(data)


@looped("segment", ["s", "scope/stream/0.#epoch.0", "\0odd", "Grüße", "\ud800", "n" * 300])
@looped("parts", [[b"data"], [b""], [b"da", memoryview(b"ta"), bytearray(b"!")], [bytes(70_000)]])
def test_an_append_without_an_object_is_the_same_operation(segment: str, parts: list[Buffer]) -> None:
    for writer, number in ((W, 7), (UUID(int=0), -(1 << 63)), (UUID(int=(1 << 128) - 1), (1 << 63) - 1)):
        rows = [(number - at, 3, part, 0) for at, part in reversed(list(enumerate(parts)))]
        record = ops.record_of_rows(-1, ops.begin_of_appended(segment), rows, 1_700_000_000_000, writer.bytes)
        ((log_id, data),) = records(record)
        assert log_id == -1
        whole, events = b"".join(row[2] for row in rows), 3 * len(rows)
        assert ops.decode(data) == ops.Appended(segment, whole, events, 1_700_000_000_000, writer, number)
