"""What a tap with rules makes of bytes: nothing is lost, nothing is changed, nothing is raised."""

from hypothesis import given
from hypothesis import strategies as st

from segstore.server.tap.frames import FrameSplitter
from segstore.wire import MAX_FRAME_BYTES, AppendBlock, Hello, Padding, encode
from tests.looped import looped
from tests.server.support import WRITER, append, create, read

FRAMES = [encode(Hello(17, 5)), encode(create()), encode(append(1)), encode(read(3))]
BLOCK = encode(AppendBlock(WRITER, b"data"))
UNKNOWN = b"\0\0\x22\x22\0\0\0\x03abc"


@given(
    st.lists(st.sampled_from([*FRAMES, UNKNOWN]) | st.binary(max_size=40)).map(b"".join), st.lists(st.integers(1, 30))
)
def test_whatever_comes_in_whatever_pieces_leaves_as_it_came(data: bytes, sizes: list[int]) -> None:
    frames, out, at = FrameSplitter(), b"", 0
    for size in [*sizes, len(data)]:
        if at < len(data):
            out += b"".join(piece.data for piece in frames.feed(data[at : at + size]))
        at += size
    assert out + frames.rest() == data
    assert frames.rest() == b""


@given(st.lists(st.sampled_from([*FRAMES, UNKNOWN]) | st.binary(max_size=40)).map(b"".join), st.integers(1, 3))
def test_pieces_that_are_asked_for_a_few_at_a_time_are_the_same(data: bytes, most: int) -> None:
    frames, few = FrameSplitter(), FrameSplitter()
    expected, found = frames.feed(data), few.feed(data, most)
    while few.has_more:
        more = few.feed(b"", most)
        assert len(more) <= most
        found += more
    assert found == expected
    assert few.rest() == frames.rest()
    assert few.problem == frames.problem


def test_frames_come_with_their_commands_once_they_are_whole() -> None:
    frames = FrameSplitter()
    found = [piece for byte in b"".join(FRAMES) for piece in frames.feed(bytes([byte]))]
    assert [piece.data for piece in found] == FRAMES
    assert [piece.command for piece in found] == [Hello(17, 5), create(), append(1), read(3)]
    assert frames.problem == ""


def test_a_frame_of_an_unknown_type_is_forwarded_as_it_comes_and_those_behind_it_are_found() -> None:
    frames = FrameSplitter()
    assert [(each.data, each.command) for each in frames.feed(UNKNOWN[:9])] == [(UNKNOWN[:9], None)]
    found = frames.feed(UNKNOWN[9:] + FRAMES[0])
    assert [(each.data, each.command) for each in found] == [(b"bc", None), (FRAMES[0], Hello(17, 5))]
    assert frames.problem == "no command has the type code 8738"


@looped("length", [-1, MAX_FRAME_BYTES])
def test_behind_a_length_that_cannot_be_all_passes(length: int) -> None:
    frames, bad = FrameSplitter(), b"\0\0\0\x09" + length.to_bytes(4, "big", signed=True)
    assert [each.command for each in frames.feed(bad)] == [None]
    assert [(each.data, each.command) for each in frames.feed(FRAMES[0])] == [(FRAMES[0], None)]
    assert frames.problem.startswith("a frame that announces ")


def test_frames_that_count_as_requests_are_marked_even_if_they_do_not_decode() -> None:
    others = [BLOCK, encode(Padding(8)), BLOCK[:4] + b"\0\0\0\x02no", b"\0\0\0\x09\xff\xff\xff\xff"]
    requests = [*FRAMES, b"\0\0\0\x09\0\0\0\x02no", UNKNOWN]
    found = FrameSplitter().feed(b"".join(requests + others))
    assert [each.data for each in found if each.is_request] == requests
    assert [each.data for each in found if not each.is_request] == others


def test_runs_are_one_piece_and_are_not_looked_for_behind_a_frame_that_may_change_them() -> None:
    def find(view: memoryview, at: int) -> tuple[list[object], int]:
        looked_at.append(bytes(view[at : at + 4]))
        stop = bytes(view).find(FRAMES[3], at)
        return (["run"], stop) if view[at : at + len(BLOCK)] == BLOCK and stop > 0 else ([], at)

    looked_at: list[bytes] = []
    frames = FrameSplitter()
    assert [piece.data for piece in frames.feed(FRAMES[1] + BLOCK + FRAMES[3], find_runs=find)] == [FRAMES[1]]
    assert frames.has_more
    assert frames.held == len(FRAMES[1] + BLOCK + FRAMES[3]), "what the feed has returned is in memory until all is"
    run, other = frames.feed(b"", find_runs=find)
    assert (run.data, run.command) == (BLOCK, ["run"])
    assert (other.data, other.command) == (FRAMES[3], read(3))
    assert looked_at == [FRAMES[1][:4], BLOCK[:4]]
    assert (frames.has_more, frames.held) == (False, 0)
