"""One direction by a clock of the test: what each toxic does to bytes and their times."""

import random
import statistics
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from segstore.server.toxics.models import Toxic
from segstore.server.toxics.pipe import Content, Pipe, ToxicMark, ToxicStage, stage_of
from tests.looped import looped

_TOXIC: TypeAdapter[Toxic] = TypeAdapter(Toxic)


def stage(kind: str, *, seed: int = 1, now_s: float = 0.0, **fields: Any) -> ToxicStage:
    return stage_of(_TOXIC.validate_python({"type": kind, **fields}), random.Random(seed), now_s)


def pipe_of(*stages: ToxicStage) -> Pipe:
    pipe = Pipe()
    pipe.use(stages)
    return pipe


def drained(pipe: Pipe, until_s: float = 1e9) -> list[tuple[float, bytes | ToxicMark]]:
    """What leaves, with the times."""
    found: list[tuple[float, bytes | ToxicMark]] = []
    while (at_s := pipe.next_s(is_open=True)) is not None and at_s <= until_s:
        assert pipe.take(at_s - 1e-9, is_open=True) is None, "nothing leaves before its time"
        content = pipe.take(at_s, is_open=True)
        found.append((at_s, plain(content)))
    return found


def plain(content: Content) -> bytes | ToxicMark:
    return content if isinstance(content, ToxicMark) else bytes(content)


def put(pipe: Pipe, now_s: float, data: bytes | ToxicMark) -> None:
    pipe.put(now_s, data if isinstance(data, ToxicMark) else memoryview(data))


def test_latency_delays_each_piece_from_when_it_came_and_the_end_by_nothing_but_those_before() -> None:
    pipe = pipe_of(stage("latency", latency=100))
    put(pipe, 0.0, b"a")
    put(pipe, 0.05, b"b")
    put(pipe, 0.06, ToxicMark.END)
    assert drained(pipe) == [(0.1, b"a"), (pytest.approx(0.15), b"b"), (pytest.approx(0.15), ToxicMark.END)]


@looped(
    ("distribution", "mean", "least", "most"),
    [("uniform", 100, 80, 120), ("normal", 100, 20, 200), ("pareto", 120, 100, 2000)],
)
def test_jitter_has_the_distribution_that_was_set(distribution: str, mean: int, least: int, most: int) -> None:
    pipe = pipe_of(stage("latency", latency=100, jitter=20, distribution=distribution))
    delays = []
    for number in range(4000):
        put(pipe, 10.0 * number, b"x")
        ((at_s, _),) = drained(pipe)
        delays.append((at_s - 10 * number) * 1000)
    assert statistics.mean(delays) == pytest.approx(mean, rel=0.03)
    assert least <= min(delays) < mean - 5
    assert mean + 10 < max(delays) <= most
    if distribution != "pareto":
        assert statistics.stdev(delays) == pytest.approx(20 / 3**0.5 if distribution == "uniform" else 20, rel=0.05)


def test_bandwidth_sends_each_byte_at_its_time() -> None:
    pipe = pipe_of(stage("bandwidth", rate=10))
    put(pipe, 1.0, bytes(25_000))
    left = drained(pipe, until_s=2.0 + 1e-6)
    assert sum(len(data) for _, data in left if isinstance(data, bytes)) == 10_000
    left += drained(pipe)
    assert sum(len(data) for _, data in left if isinstance(data, bytes)) == 25_000
    assert left[-1][0] == pytest.approx(3.5)
    put(pipe, 10.0, bytes(100))
    assert drained(pipe)[-1][0] == pytest.approx(10.01), "an idle link saves nothing up"


def test_a_slow_close_delays_the_end_only() -> None:
    pipe = pipe_of(stage("slow_close", delay=500))
    put(pipe, 0.0, b"data")
    put(pipe, 1.0, ToxicMark.END)
    assert drained(pipe) == [(0.0, b"data"), (1.5, ToxicMark.END)]


def test_a_timeout_drops_data_and_closes_after_its_time_or_never() -> None:
    for timeout, expected in ((2000, [(2.0, ToxicMark.CLOSE)]), (0, [])):
        pipe = pipe_of(stage("timeout", timeout=timeout))
        put(pipe, 0.0, b"data")
        assert pipe.take(0.0, is_open=True) is None
        assert pipe.size == 0, "it is dropped when it comes"
        assert drained(pipe) == expected
        assert pipe.next_s(is_open=True) is None


def test_a_reset_comes_after_the_first_data_even_if_nothing_can_leave() -> None:
    pipe = pipe_of(stage("reset_peer", timeout=300))
    assert pipe.next_s(is_open=True) is None
    put(pipe, 1.0, b"data")
    assert pipe.next_s(is_open=True) == 1.3
    put(pipe, 1.1, b"more")
    assert pipe.next_s(is_open=False) == 1.3
    assert pipe.take(1.3, is_open=False) is ToxicMark.RESET
    assert pipe.take(1.3, is_open=False) is None


def test_slices_have_the_size_and_the_distance_that_were_set() -> None:
    pipe = pipe_of(stage("slicer", average_size=100, size_variation=20, delay=1000))
    put(pipe, 0.0, data := random.Random(5).randbytes(10_000))
    left = drained(pipe)
    sizes = [len(each) for _, each in left if isinstance(each, bytes)]
    assert b"".join(each for _, each in left if isinstance(each, bytes)) == data
    assert all(80 <= size <= 120 for size in sizes[:-1])
    assert len(set(sizes)) > 10
    assert statistics.mean(sizes[:-1]) == pytest.approx(100, rel=0.05)
    assert [at_s for at_s, _ in left] == pytest.approx([number / 1000 for number in range(len(left))])


@looped("limit", [0, 1, 5, 6])
def test_the_limit_passes_so_many_bytes_and_then_closes(limit: int) -> None:
    pipe = pipe_of(stage("limit_data", bytes=limit))
    for data in (b"abc", b"def", b"ghi"):
        put(pipe, 0.0, data)
    left = [content for _, content in drained(pipe)]
    passed = left[: left.index(ToxicMark.CLOSE)]
    assert b"".join(each for each in passed if isinstance(each, bytes)) == b"abcdefghi"[:limit]
    assert set(left[len(passed) :]) == {ToxicMark.CLOSE}
    assert pipe.size == 0


def test_toxics_follow_each_other() -> None:
    pipe = pipe_of(stage("latency", latency=1000), stage("limit_data", bytes=8), stage("slicer", average_size=3))
    put(pipe, 0.0, b"0123456789")
    assert drained(pipe) == [(1.0, b"012"), (1.0, b"345"), (1.0, b"67"), (1.0, ToxicMark.CLOSE)]


def test_what_is_in_flight_goes_through_the_new_toxics() -> None:
    slow = stage("bandwidth", rate=1)
    pipe = pipe_of(slow)
    put(pipe, 0.0, b"0123456789" * 100)
    put(pipe, 0.0, ToxicMark.END)
    assert pipe.take(0.01, is_open=True) == b"0123456789"
    assert pipe.next_s(is_open=True) == pytest.approx(0.02)
    pipe.use([])
    left = drained(pipe)
    assert b"".join(each for _, each in left if isinstance(each, bytes)) == b"0123456789" * 99
    assert [each for _, each in left if isinstance(each, ToxicMark)] == [ToxicMark.END]
    assert max(at_s for at_s, _ in left) == 0.0, "nothing waits any more"


def test_a_limit_counts_on_when_other_toxics_change() -> None:
    limit = stage("limit_data", bytes=6)
    pipe = pipe_of(limit, stage("slicer", average_size=1, delay=1_000_000))
    put(pipe, 0.0, b"0123456789")
    assert pipe.take(0.0, is_open=True) == b"0"
    assert pipe.next_s(is_open=True) == 1.0
    pipe.use([limit])
    left = [content for _, content in drained(pipe)]
    assert b"".join(each for each in left if isinstance(each, bytes)) == b"12345"
    assert left[-1] is ToxicMark.CLOSE


_SMALL = st.integers(0, 50)
_LOSSLESS = st.one_of(
    st.builds(lambda latency, jitter: stage("latency", latency=latency, jitter=jitter), _SMALL, _SMALL),
    st.builds(lambda rate: stage("bandwidth", rate=1 + rate), _SMALL),
    st.builds(lambda size, delay: stage("slicer", average_size=1 + size, delay=delay), _SMALL, _SMALL),
    st.builds(lambda delay: stage("slow_close", delay=delay), _SMALL),
)
_STEP = st.one_of(
    st.tuples(st.just("put"), st.binary(min_size=1, max_size=60)),
    st.tuples(st.just("use"), st.lists(_LOSSLESS, max_size=3)),
    st.tuples(st.just("take"), st.integers(0, 40)),
    st.tuples(st.just("put back"), st.integers(1, 40)),
)


@given(st.lists(_STEP, max_size=30))
def test_whatever_toxics_come_and_go_no_byte_is_lost_or_overtaken(steps: list[tuple[str, Any]]) -> None:
    pipe, now_s, sent, left = Pipe(), 0.0, b"", b""
    for what, value in steps:
        if what == "put":
            put(pipe, now_s, value)
            sent += value
        elif what == "use":
            pipe.use(value)
        else:
            now_s += value / 1000
            while (content := pipe.take(now_s, is_open=True)) is not None:
                assert not isinstance(content, ToxicMark)
                if what == "put back" and len(content) > value:
                    pipe.put_back(content[value:])
                    content = content[:value]
                    what = "take"
                left += content
        assert sent.startswith(left)
        assert pipe.size == len(sent) - len(left)
    put(pipe, now_s, ToxicMark.END)
    rest = [content for _, content in drained(pipe)]
    assert left + b"".join(each for each in rest if isinstance(each, bytes)) == sent
    assert rest[-1] is ToxicMark.END
    assert rest.count(ToxicMark.END) == 1
