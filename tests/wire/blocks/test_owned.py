"""Copies of decoded values do not view the buffer that they were read from."""

from segstore.wire import ReadTable, TableKey, WrongHost, decode, encode
from segstore.wire.blocks import owned

KEY = TableKey(b"key", -1)


def read_table(count: int) -> ReadTable:
    buffer = bytearray(encode(ReadTable(1, "s/t/0.#epoch.0", "", (KEY,) * count)))
    command = decode(buffer)
    assert isinstance(command, ReadTable)
    copy, _ = owned(command)
    buffer[:] = bytes(len(buffer))
    assert isinstance(copy, ReadTable)
    return copy


def test_payloads_are_copied_and_counted() -> None:
    copy, size = owned(WrongHost(1, "segment", "host", ""))
    assert copy == WrongHost(1, "segment", "host", "")
    assert size == len("segment") + len("host")
    assert owned(memoryview(b"abc")) == (b"abc", 3)


def test_keys_outlive_their_buffer() -> None:
    assert read_table(3).keys == (KEY,) * 3
