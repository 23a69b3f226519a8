"""The accelerator: C answers what Python answers or leaves it to Python, keeps no memory, and is never a secret."""

from __future__ import annotations

import builtins
import copy
import ctypes
import gc
import json
import pickle
import uuid
import weakref
from functools import partial
from itertools import chain, pairwise
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segstore import __version__
from segstore.wire import (
    COMMANDS,
    AppendBlock,
    AppendBlockEnd,
    AuthTokenCheckFailed,
    Command,
    DataAppended,
    FrameDecoder,
    KeepAlive,
    MergeSegmentsBatch,
    MergeTableSegments,
    Padding,
    SealTableSegment,
    SegmentRead,
    SetupAppend,
    WireError,
    codec_backend,
    decode,
    encode,
    encode_parts,
)
from segstore.wire.blocks import WHOLE_APPENDS, BlockWriter
from segstore.wire.blocks.decoder import _DATA_APPENDED as ACKNOWLEDGED
from segstore.wire.codec import CODECS, codec
from segstore.wire.codec.generate import FrameRows
from segstore.wire.codec.speed import load
from segstore.wire.codec.speed.backend import TYPES
from tests.looped import looped
from tests.strategies import FRAMED, commands, framed
from tests.wire.agreement import outcome
from tests.wire.codec.speed.memory import FAILED, check_nothing_is_kept, without_one_allocation

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[4]
NEEDS_C = pytest.mark.needs("the extension segstore._speed")
WRITER = uuid.UUID(int=77)


def c_codec() -> Any:
    return codec.SPEED._codec


def frames_recorded() -> list[bytes]:
    """All frames of the recorded vectors, also those that must not be read."""
    found: dict[bytes, None] = {}
    for folder in (ROOT / "fixtures" / "vectors", ROOT.parent / "shared" / "vectors"):
        for path in sorted(folder.glob("*.jsonl")):
            for line in path.read_text("utf-8").splitlines():
                data = bytes.fromhex(json.loads(line).get("hex") or "")
                if 8 <= len(data) <= 4096:
                    found[data] = None
    return list(found)


def python_of(frame: bytes) -> tuple[Any, ...]:
    return outcome(partial(decode, frame, codec="python"))


def agrees(frame: bytes) -> bool:
    """Whether C answers; if it does, it says what Python says, and writes the value as Python does."""
    found = c_codec().decode(frame)
    if found is None:
        return False
    assert ("is", found) == python_of(frame), frame.hex()
    assert type(found) is COMMANDS[int.from_bytes(frame[:4], "big", signed=True)]
    written, parts = c_codec().encode(found), c_codec().encode_parts(found)
    assert written in (None, encode(found, codec="python")), frame.hex()
    assert parts is None or b"".join(parts) == written
    return True


@NEEDS_C
def test_c_leaves_no_plain_command_to_python() -> None:
    unrecorded = (MergeTableSegments(1, "a", "b", ""), SealTableSegment(1, "a", ""))
    made = [encode(value) for value in unrecorded]
    read = [frame for frame in (*made, *frames_recorded()) if agrees(frame)]
    written = [value for value in map(decode, read) if c_codec().encode(value) and c_codec().encode_parts(value)]
    assert {value.code for value in written} == FRAMED.keys()
    assert {frame[:4] for frame in read} == {code.to_bytes(4, "big", signed=True) for code in FRAMED}


def _fed(
    name: codec.Codec, stream: bytes, cuts: list[int], kind: Any, most: int | None, options: dict[str, Any]
) -> Any:
    """All that a decoder gives for a stream in pieces, rows spelt out, with its positions and its error."""
    frames = FrameDecoder(codec=name, **options)
    found: list[Any] = []

    def shown(command: Any) -> list[Any]:
        if isinstance(command, FrameRows):
            rows = ((writer, *numbers) for writer, *numbers in command.fields)
            return [shown(DataAppended(id_, uuid.UUID(bytes=w), n, p, at))[0] for w, n, p, id_, at in rows]
        return [(type(command), command.to_dict())]

    for start, stop in pairwise([0, *sorted(cuts), len(stream)]):
        piece, at = kind(stream[start:stop]), 0
        while at < stop - start:
            try:
                found += chain(*map(shown, frames.feed(piece, start=at, most=most)))
            except WireError as error:
                return [*found, *chain(*map(shown, error.decoded)), str(error), error.facts()]
            found.append(at := frames.position)
    return [*found, frames.buffered_bytes]


_STREAMS = st.lists(
    st.one_of(
        commands().map(encode),
        st.sampled_from(
            [
                encode(AppendBlock(WRITER, b"event")) + encode(AppendBlockEnd(WRITER, 5, b"", 1, 7, 8)),
                encode(DataAppended(1, WRITER, 2, 3, 4)) * 3,
                encode(SegmentRead("s", 0, True, True, bytes(5000), 1)),
                encode(SegmentRead("s", 0, True, True, bytes(5000), 1))[:-8].replace(b"\0\0\x13\xad", b"\0\0\x13\xa5"),
                encode(AppendBlock(WRITER, bytes(5000))),
                framed(4711, b"unknown"),
            ]
        ),
    ),
    max_size=6,
)


@NEEDS_C
@given(
    _STREAMS,
    st.lists(st.integers(0, 300), max_size=3),
    st.sampled_from([bytes, bytearray, memoryview]),
    st.sampled_from([None, 1, 2]),
    st.fixed_dictionaries(
        {
            "acks_in_rows": st.booleans(),
            "most_elements": st.sampled_from([None, 0, 2]),
            "unknown": st.sampled_from(["refuse", "keep"]),
            "max_frame_bytes": st.sampled_from([0x00FF_FFFF, 6000, 63, 8]),
        }
    ),
)
def test_frames_come_as_they_come_from_python(
    stream: list[bytes], cuts: list[int], kind: Any, most: int | None, options: dict[str, Any]
) -> None:
    joined = b"".join(stream)
    if len(joined) < 100_000:
        cuts = [cut for cut in cuts if cut <= len(joined)]
        most = None if options["acks_in_rows"] else most  # rows count as one
        expected = _fed("python", joined, cuts, kind, most, options)
        assert _fed("c", joined, cuts, kind, most, options) == expected


@NEEDS_C
@looped("kind", [bytes, bytearray, memoryview])
def test_payloads_are_views_of_the_bytes_that_were_fed(kind: Any) -> None:
    def is_view(data: bytes, *, in_a_run: bool) -> bool:
        stream = kind(encode(AppendBlock(WRITER, data)) + encode(AppendBlockEnd(WRITER, len(data), b"", 1, 7, 8)))
        decoder = FrameDecoder(joined=WHOLE_APPENDS, codec="c")
        records = {WRITER.bytes: BlockWriter("s", WRITER)} if in_a_run else None
        first: Any = decoder.feed(stream, records=records)[0]
        found = first[0][1][0][2] if in_a_run else first.data
        assert found == data
        return type(found) is memoryview and found.obj is memoryview(stream).obj

    assert is_view(b"event" * 100, in_a_run=True)
    assert is_view(b"event", in_a_run=False)
    assert is_view(b"", in_a_run=False), "as in Python"
    assert not is_view(b"event", in_a_run=True), "small data of whole appends is copied: that is faster"


def _set(record: Any, name: str, value: object) -> None:
    """Past what keeps a command as it is."""
    getattr(type(record), name).__set__(record, value)


WRONG: tuple[Any, ...] = (
    *(None, True, 1.5, 2**31, 2**63, -(2**63) - 1, 2**128, "text", "\0", "é", "x" * 70_000, b"data", bytearray(b"x")),
    *(memoryview(b"12345678")[::2], memoryview(b"1234").cast("I"), (), [], (None,), (1, "x"), [1], uuid.UUID(int=1)),
    *(object(), KeepAlive(), int, ("a", "b"), (2**63,), range(3), 1 << 24),
)


def _told(call: Callable[[], Any]) -> tuple[Any, ...]:
    """The result, or what is raised; the schema lets some errors of wrong types through as they are."""
    try:
        return outcome(call)
    except Exception as error:  # noqa: BLE001 — whatever it is, both raise the same
        return type(error), str(error)


@NEEDS_C
def test_any_value_in_any_attribute_is_written_or_refused_as_python_does() -> None:
    values = {code: decode(frame) for frame in frames_recorded() if (code := frame[3]) and agrees(frame)}
    assert len(values) > 60
    for value in values.values():
        for name in value.__struct_fields__:
            for wrong in WRONG:
                bad = copy.copy(value)
                _set(bad, name, wrong)
                expected = _told(lambda bad=bad: encode(bad, codec="python"))
                assert c_codec().encode(bad) in (None, expected[1]), (bad, wrong)
                assert _told(lambda bad=bad: b"".join(encode_parts(bad))) == expected
            bad = copy.copy(value)
            getattr(type(bad), name).__delete__(bad)
            assert c_codec().encode(bad) is None


@NEEDS_C
def test_a_view_that_was_released_is_left_to_python() -> None:
    view = memoryview(b"data")
    value = AppendBlock(WRITER, view)
    view.release()
    assert c_codec().encode(value) is None
    assert c_codec().encode_parts(value) is None
    for frame in (memoryview(encode(KeepAlive())), memoryview((ctypes.c_int * 2)(100, 0))):
        frame.release()
        assert c_codec().decode(frame) is None


@NEEDS_C
def test_a_uuid_is_written_by_its_value_and_not_past_its_range() -> None:
    for number in (0, 1, (1 << 128) - 1, 1 << 127):
        value = AppendBlock(uuid.UUID(int=number), b"")
        assert c_codec().encode(value)[8:] == number.to_bytes(16, "big")
        assert c_codec().decode(encode(value)).writer_id.int == number
    for wrong in (-1, 1 << 128, None, 1.0):
        odd = uuid.UUID(int=5)
        object.__setattr__(odd, "int", wrong)
        assert c_codec().encode(AppendBlock(odd, b"")) is None


@NEEDS_C
def test_a_frame_has_the_limit_that_python_has() -> None:
    for longest in (Padding(0x00FF_FFFF - 8), AppendBlock(WRITER, bytes(0x00FF_FFFF - 24))):
        assert len(c_codec().encode(longest)) == 0x00FF_FFFF
    for longer in (Padding(0x00FF_FFFF - 7), AppendBlock(WRITER, bytes(0x00FF_FFFF - 23))):
        assert c_codec().encode(longer) is None
        assert c_codec().encode_parts(longer) is None


def _plain_and_bad() -> tuple[list[Command], list[bytes]]:
    values = [
        SetupAppend(1, WRITER, "scope/stream/0", "token"),
        AppendBlock(WRITER, b"event"),
        AuthTokenCheckFailed(1, "", AuthTokenCheckFailed(1, "").error_code),
        MergeSegmentsBatch(1, "t", ("a", "b"), ""),
        *(decode(frame) for frame in frames_recorded()[:150] if agrees(frame)),
    ]
    frames = [encode(value) for value in values]
    return values, frames + [framed(int.from_bytes(each[:4], "big", signed=True), each[8:-3]) for each in frames]


def _use(values: list[Command], frames: list[bytes]) -> None:
    ask = c_codec()
    for value in values:
        ask.encode(value)
        ask.encode_parts(value)
    for frame in frames:
        ask.decode(frame)
        ask.decode(bytearray(frame))
    stream = b"".join(frame for frame in frames if ask.decode(frame) is not None)
    records = {WRITER.bytes: BlockWriter("s", WRITER)}
    FrameDecoder(codec="c").feed(stream)
    FrameDecoder(codec="c", joined=WHOLE_APPENDS, acks_in_rows=True).feed(stream, most=999, records=records)


@NEEDS_C
def test_no_reference_and_no_memory_is_kept() -> None:
    values, frames = _plain_and_bad()
    watched: list[Any] = [*frames, WRITER, *{type(value) for value in values}, AppendBlock, BlockWriter]
    watched += [getattr(value, name) for value in values for name in value.__struct_fields__]
    check_nothing_is_kept(partial(_use, values, frames), watched)


@NEEDS_C
@pytest.mark.needs("CPython's _testcapi")
def test_memory_that_runs_out_at_any_point_is_a_memory_error() -> None:
    values, frames = _plain_and_bad()
    ask = c_codec()
    calls: list[Callable[[], Any]] = [partial(ask.decode, frame) for frame in frames]
    calls += [partial(ask.encode, value) for value in values] + [partial(ask.encode_parts, value) for value in values]
    stream = (encode(AppendBlock(WRITER, b"event")) + encode(AppendBlockEnd(WRITER, 5, b"", 1, 7, 8))) * 3
    records = {WRITER.bytes: BlockWriter("a", WRITER)}
    calls.append(lambda: FrameDecoder(codec="c", joined=WHOLE_APPENDS).feed(stream, most=9, records=records)[0][0][1])  # type: ignore[index]
    acknowledge = codec.SPEED.acknowledger(ACKNOWLEDGED)
    rows = [(3, 1, b"data", 9), (4, 1, b"data", 9)]
    calls.append(lambda: acknowledge(rows, WRITER.bytes, 1, 10, bytearray()))
    failed = 0
    for call in calls:
        expected = repr(call())
        for found in without_one_allocation(call, 40):
            failed += found is FAILED
            assert found is FAILED or repr(found) == expected
    assert failed > len(values)


@NEEDS_C
def test_recent_uuids_are_kept_to_a_bound_and_right() -> None:
    def kept() -> int:
        return sum(type(object_).__name__ == "_Uuid" for object_ in gc.get_objects())

    before = kept()
    for number in range(5000):
        frame = encode(AppendBlock(uuid.UUID(int=number << 40 | number), b""))
        assert c_codec().decode(frame).writer_id == uuid.UUID(int=number << 40 | number)
    assert kept() - before <= 1024


@NEEDS_C
def test_an_exception_of_python_leaves_the_loop_and_releases_the_buffer() -> None:
    data = bytearray(framed(4711, b""))
    with pytest.raises(WireError):
        FrameDecoder(codec="c").feed(data)
    data += b"more"  # BufferError if a view were left


def test_the_backend_is_reported_and_can_be_chosen() -> None:
    assert codec_backend in CODECS
    assert codec.checked_codec("python") == "python"
    with pytest.raises(ValueError, match="codec is 'fastest'; it can be 'c', 'python' or 'construct'"):
        decode(encode(KeepAlive()), codec="fastest")  # type: ignore[arg-type]


def test_c_that_is_not_built_is_refused_with_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "CODECS", ("python", "construct"))
    with pytest.raises(ValueError, match=r"SEGSTORE_CODEC is 'c', but the extension segstore._speed is not built here"):
        codec.checked_codec("c", "SEGSTORE_CODEC")


@NEEDS_C
def test_functions_with_c_in_front_are_still_those_functions() -> None:
    for function in (decode, encode, encode_parts):
        behind = getattr(function, "__wrapped__", function)
        front: Any = codec.SPEED.shortcut(behind)
        assert (front.__name__, front.__doc__) == (function.__name__, function.__doc__)
        assert front.__module__ == "segstore.wire.codec.codec"
        assert front.__wrapped__ is behind
    assert pickle.loads(pickle.dumps(decode)) is decode
    assert copy.deepcopy(encode) is encode
    assert weakref.ref(encode)() is encode


def _extension(version: str, **contents: object) -> ModuleType:
    made = ModuleType("segstore._speed")
    made.VERSION = version  # type: ignore[attr-defined]
    vars(made).update(contents)
    return made


def test_an_extension_of_another_version_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    import segstore

    for found, why in (
        (_extension("0.0.9"), f"was built for segstore 0.0.9, and this is {__version__}"),
        (
            _extension(__version__, Acks=1, Codec=2, Shape=3),
            "was built from other sources: it lacks Frames, Rows, Shortcut",
        ),
        (_extension(__version__, **dict.fromkeys(TYPES)), "does not know these tables"),
    ):
        monkeypatch.setattr(segstore, "_speed", found, raising=False)
        with pytest.warns(RuntimeWarning, match=f"the extension segstore._speed {why}.*the codec in Python is used"):
            assert load(FRAMED.values()) is None


@pytest.mark.parametrize("says", ["undefined symbol: PyNothing", None])
def test_an_extension_that_does_not_load_is_refused_and_one_that_was_not_built_is_not_missed(
    monkeypatch: pytest.MonkeyPatch, says: str | None, recwarn: pytest.WarningsRecorder
) -> None:
    import segstore

    plain = builtins.__import__

    def importing(name: str, *arguments: Any) -> Any:
        if name == "segstore" and arguments[2] == ("_speed",):
            raise ImportError(says or "cannot import name '_speed' from 'segstore'")
        return plain(name, *arguments)

    monkeypatch.delattr(segstore, "_speed", raising=False)
    monkeypatch.setattr(builtins, "__import__", importing)
    assert load(FRAMED.values()) is None
    assert [str(each.message).partition(";")[0] for each in recwarn] == (
        [f"the extension segstore._speed does not load ({says})"] if says else []
    )
