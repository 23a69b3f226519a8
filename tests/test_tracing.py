"""Traces as files: read by what they hold, written whole or not at all, recorded block by block."""

import errno
import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segstore.traces import FileRecorder, TraceFile, redacted, write_trace
from segstore.wire import Hello, SealSegment, encode
from segstore.wire.trace import FLUSH_AFTER_NS, Block, Damage, Direction, Metadata, Record, RecordKind, read_blocks
from tests.wire.trace.traces import METADATA, capture, frame, record, records

HELLO = encode(Hello(17, 5))


def read(path: Path) -> tuple[list[Record], Metadata, list[Damage]]:
    with TraceFile(path) as opened:
        return list(opened.records()), opened.metadata, opened.damages


class Clock:
    """A millisecond a call."""

    def __init__(self) -> None:
        self.now_ns = 0

    def __call__(self) -> int:
        self.now_ns += 1_000_000
        return self.now_ns


def a_recorder(path: Path, clock: Clock | None = None, *, record_tokens: bool = True) -> FileRecorder:
    metadata = Metadata(17, "test", {"why": "x"})
    return FileRecorder(path, metadata, record_tokens=record_tokens, clock=clock or Clock())


@given(drawn=st.lists(records(), max_size=6), compress=st.booleans())
def test_a_trace_keeps_everything_in_either_form(
    tmp_path_factory: pytest.TempPathFactory, drawn: list[Record], compress: bool
) -> None:
    folder = tmp_path_factory.mktemp("trace")
    forms = []
    before: list[Record] = drawn
    for name in ("a.wtrace", "b.jsonl", "c.wtrace", "d.jsonl"):
        assert write_trace(folder / name, before, lambda: METADATA, compress=compress) == len(drawn)
        before, metadata, damages = read(folder / name)
        assert (before, metadata, damages) == (drawn, METADATA, [])
        forms.append((folder / name).read_bytes())
    assert forms[0] == forms[2], "the same trace gives the same file"
    assert forms[1] == forms[3]


def test_a_trace_can_be_written_onto_itself(tmp_path: Path) -> None:
    path = tmp_path / "a.wtrace"
    path.write_bytes(capture([record(HELLO, at=at) for at in range(10)]))
    with TraceFile(path) as opened:
        write_trace(path, (each for each in opened.records() if each.ts_ns % 2), lambda: opened.metadata)
    assert [each.ts_ns for each in read(path)[0]] == [1, 3, 5, 7, 9]
    assert read(path)[1] == METADATA


def test_redaction_takes_tokens_out_of_frames_and_of_halves() -> None:
    whole = encode(SealSegment(1, "s", "secret"))
    found = list(
        redacted([record(whole), record(whole[:-2], kind=RecordKind.BYTES), record(b"{}", kind=RecordKind.OPEN)])
    )
    assert [each.data for each in found] == [
        whole.replace(b"secret", b"******"),
        whole[:-2].replace(b"secr", b"****"),
        b"{}",
    ]


def test_a_recording_holds_what_happened(tmp_path: Path) -> None:
    path = tmp_path / "a.wtrace"
    recorder = a_recorder(path)
    assert recorder.opened(peer="127.0.0.1:4711") == 1
    recorder.received(1, HELLO + HELLO[:5])
    recorder.sent(1, [HELLO[:3], HELLO[3:]])
    recorder.received(1, HELLO[5:])
    recorder.closed(1, Direction.REPLY, reason="done")
    recorder.close()
    recorder.close()
    found, metadata, damages = read(path)
    assert [(each.kind.name, each.direction.name, each.data) for each in found] == [
        ("OPEN", "REQUEST", b'{"peer":"127.0.0.1:4711"}'),
        ("FRAME", "REQUEST", HELLO),
        ("FRAME", "REPLY", HELLO),
        ("FRAME", "REQUEST", HELLO),
        ("CLOSE", "REPLY", b'{"reason":"done"}'),
    ]
    assert [each.ts_ns for each in found] == sorted(each.ts_ns for each in found)
    assert metadata == Metadata(17, "test", {"why": "x"})
    assert damages == []


def test_a_recording_can_be_read_while_it_grows(tmp_path: Path) -> None:
    path, clock = tmp_path / "a.wtrace", Clock()
    recorder = a_recorder(path, clock)
    assert read(path) == ([], Metadata(17, "test", {"why": "x"}), [])
    recorder.received(1, HELLO)
    recorder.tick()
    assert read(path)[0] == [], "not yet due"
    clock.now_ns += FLUSH_AFTER_NS
    recorder.tick()
    assert [each.data for each in read(path)[0]] == [HELLO]
    recorder.received(1, frame(3, bytes(5 << 20)))
    assert len(read(path)[0]) == 2, "a full block is written at once"
    recorder.close()


def test_only_its_owner_can_read_what_is_written(tmp_path: Path) -> None:
    recorder = a_recorder(tmp_path / "a.wtrace")
    recorder.received(1, HELLO)
    recorder.close()
    (tmp_path / "b.jsonl").touch(0o644)
    for name in ("b.jsonl", "c.wtrace"):
        write_trace(tmp_path / name, read(tmp_path / "a.wtrace")[0], Metadata)
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}


def test_a_full_disk_ends_the_recording_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real, left = os.writev, 1000

    def writev(file: int, parts: list[bytes]) -> int:
        """Takes a few bytes a call, then none."""
        nonlocal left
        if left <= 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        data = b"".join(parts)[:300]
        left -= len(data)
        return real(file, [data])

    monkeypatch.setattr("segstore.traces.files.os.writev", writev)
    recorder = a_recorder(tmp_path / "a.wtrace")
    for _ in range(3):
        recorder.received(1, frame(3, bytes(5 << 20)))
    assert recorder.failure.errno == errno.ENOSPC
    assert recorder.failure.filename == str(tmp_path / "a.wtrace")
    assert len(caplog.records) == 1
    assert "has ended" in caplog.text
    recorder.tick()
    recorder.close()
    _, metadata, damages = read(tmp_path / "a.wtrace")
    assert metadata.recorder == "test"
    assert [damage.torn for damage in damages] == [True]


@pytest.mark.parametrize("failing", ["write", "replace"])
def test_an_error_of_writing_a_trace_names_it_and_leaves_no_part(
    failing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system's error names no file, or the unfinished one."""
    target = tmp_path / "a.jsonl"

    def replace(part: Path, path: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(part), None, str(path))

    def records() -> Iterator[Record]:
        yield a_record
        if failing == "write":
            raise OSError(errno.ENOSPC, "No space left on device")

    a_record = Record(1, 1, Direction.REQUEST, RecordKind.OPEN, b"{}")
    monkeypatch.setattr(Path, "replace", replace)
    with pytest.raises(OSError, match="No space left") as raised:
        write_trace(target, records(), Metadata)
    assert raised.value.filename == str(target)
    assert raised.value.filename2 is None
    assert list(tmp_path.iterdir()) == []


def test_blocks_that_are_full_are_written_in_whole_pages_and_read_back_the_same(tmp_path: Path) -> None:
    """Frames that reads cut anywhere, with small replies between them, as a store under load sees them."""
    path, clock = tmp_path / "a.wtrace", Clock()
    recorder = a_recorder(path, clock)
    number = recorder.opened(peer="127.0.0.1:4711")
    frames = [frame(3, bytes([n % 251]) * (700 + n % 3)) for n in range(20_000)]
    stream = b"".join(frames)
    for at in range(0, len(stream), 250_007):
        recorder.received(number, stream[at : at + 250_007])
        recorder.sent(number, [HELLO])
        if at == 2_000_056:
            clock.now_ns += FLUSH_AFTER_NS
            recorder.tick()
    recorder.close()
    found, metadata, damages = read(path)
    assert (metadata, damages) == (Metadata(17, "test", {"why": "x"}), [])
    assert [each.data for each in found if each.direction is Direction.REQUEST][1:] == frames
    assert [each.data for each in found if each.direction is Direction.REPLY] == [HELLO] * -(-len(stream) // 250_007)
    whole = path.read_bytes()
    full = [block for block in read_blocks(whole) if isinstance(block, Block) and block.header.sampled]
    assert len(full) >= 3
    if recorder._direct is not None:
        assert all((each.offset + each.header.size - len(each.columns.data)) % mmap.PAGESIZE == 0 for each in full)


def test_a_file_system_that_refuses_whole_pages_gets_the_same_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pwritev(file: int, parts: list[bytes], offset: int) -> int:
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr("segstore.traces.files.os.pwritev", pwritev)
    recorder = a_recorder(tmp_path / "a.wtrace")
    frames = [frame(3, bytes(1000)) for _ in range(11_000)]
    for at in range(0, len(frames), 100):
        recorder.received(1, b"".join(frames[at : at + 100]))
    recorder.close()
    found, _, damages = read(tmp_path / "a.wtrace")
    assert ([each.data for each in found], damages) == (frames, [])


def test_a_disk_that_fills_up_amid_whole_pages_leaves_the_blocks_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def pwritev(file: int, parts: list[bytes], offset: int) -> int:
        """The first block is taken in part, so that the rest goes another way; the second finds the disk full."""
        calls.append(offset)
        if len(calls) > 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        return os.pwrite(file, b"".join(parts)[:8192], offset)

    monkeypatch.setattr("segstore.traces.files.os.pwritev", pwritev)
    recorder = a_recorder(tmp_path / "a.wtrace")
    if recorder._direct is not None:
        os.close(recorder._direct)
    recorder._direct = os.open(tmp_path / "a.wtrace", os.O_WRONLY)  # which takes memory as it comes
    frames = [frame(3, bytes(1000)) for _ in range(11_000)]
    for at in range(0, len(frames), 100):
        recorder.received(1, b"".join(frames[at : at + 100]))
    assert recorder.failure is not None
    assert recorder._direct is None
    recorder.close()
    found, _, damages = read(tmp_path / "a.wtrace")
    assert damages == []
    assert 4000 < len(found) < 8000


def test_a_recording_is_followed_while_it_grows(tmp_path: Path) -> None:
    path, clock = tmp_path / "a.wtrace", Clock()
    recorder = a_recorder(path, clock)
    waits = 0

    def wait() -> None:
        nonlocal waits
        waits += 1
        if waits == 3:
            raise KeyboardInterrupt
        recorder.received(1, frame(waits, bytes(waits)))
        clock.now_ns += FLUSH_AFTER_NS
        recorder.tick()

    found: list[bytes] = []
    with TraceFile(path) as trace, pytest.raises(KeyboardInterrupt):
        found.extend(each.data for each in trace.follow(wait))
    recorder.close()
    assert found == [frame(1, bytes(1)), frame(2, bytes(2))]
    assert trace.metadata.recorder == "test"


def test_what_is_torn_may_still_come_when_a_trace_is_followed(tmp_path: Path) -> None:
    whole = capture([record(frame(1))]) + capture([record(frame(2))])[len(capture([])) :]
    path = tmp_path / "a.wtrace"
    cuts = [len(whole), len(whole) - 5, 10]
    path.write_bytes(b"")

    def wait() -> None:
        path.write_bytes(whole[: cuts.pop()])

    found: list[bytes] = []
    with TraceFile(path) as trace, pytest.raises(IndexError):
        found.extend(each.data for each in trace.follow(wait))
    assert (found, trace.damages) == ([frame(1), frame(2)], [])
