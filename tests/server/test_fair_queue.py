"""The order in which jobs are served, with a manual clock."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from segstore.server.fair_queue import SLICE_S, TICK_S, FairQueue

STEP_S = SLICE_S / 4 * 1.001  # more than rounding errors


class Loop:
    """A clock, and the loop iterations that a queue schedules."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.callbacks: list[Callable[[], None]] = []
        self.queue = FairQueue(lambda: self.now_s, self.callbacks.append)

    def iterate(self) -> None:
        callbacks, self.callbacks[:] = list(self.callbacks), []
        for each in callbacks:
            each()


class Job:
    """Steps of a quarter of a slice each."""

    def __init__(self, loop: Loop, name: str, steps: int, log: list[str], *, step_s: float = STEP_S) -> None:
        self.loop = loop
        self.name = name
        self.steps = steps
        self.step_s = step_s
        self.log = log

    def advance(self) -> bool:
        while self.steps:
            self.steps -= 1
            self.loop.now_s += self.step_s
            self.log.append(self.name)
            if self.loop.queue.is_over():
                break
        return self.steps > 0


@pytest.fixture
def loop() -> Loop:
    return Loop()


def test_jobs_get_one_slice_after_another(loop: Loop) -> None:
    log: list[str] = []
    for name in "ab":
        loop.queue.add(Job(loop, name, 8, log))
    loop.iterate()
    assert "".join(log) == "aaaabbbbaaaabbbb"
    assert not len(loop.queue)
    assert not loop.callbacks


def test_an_iteration_ends_when_its_time_is_used_up_and_the_next_goes_on_there(loop: Loop) -> None:
    log: list[str] = []
    began_s = loop.now_s
    slices = round(TICK_S / SLICE_S)
    for name in "abc":
        loop.queue.add(Job(loop, name, 4 * slices, log))
    loop.iterate()
    assert loop.now_s - began_s == pytest.approx(TICK_S, rel=0.01)
    served = log[::4]
    assert "".join(served) == ("abc" * slices)[:slices]
    loop.iterate()
    assert "".join(log[::4]) == ("abc" * slices)[: 2 * slices]


def test_a_job_that_uses_little_is_served_before_those_that_used_up_their_slices(loop: Loop) -> None:
    log: list[str] = []
    for name in "abcdefgh":
        loop.queue.add(Job(loop, name, 1000, log))
    for _ in range(5):
        loop.iterate()
    log.clear()
    loop.queue.add(Job(loop, "!", 1, log))
    loop.iterate()
    assert log[0] == "!"


def test_jobs_that_use_little_do_not_starve_the_others(loop: Loop) -> None:
    log: list[str] = []
    loop.queue.add(Job(loop, "h", 1000, log), heavy=True)
    for _ in range(10):
        for _ in range(round(2 * TICK_S / STEP_S)):  # more than an iteration serves
            loop.queue.add(Job(loop, ".", 1, log))
        loop.iterate()
    assert log.count("h") == 10 * 4


def test_a_step_that_is_longer_than_an_iteration_leaves_the_rest_for_the_next(loop: Loop) -> None:
    log: list[str] = []
    for name in "abc":
        loop.queue.add(Job(loop, name, 1, log, step_s=10 * TICK_S))
    loop.iterate()
    assert log == ["a"]
    loop.iterate()
    assert log == ["a", "b"]


def test_a_queued_job_is_there_once_and_may_be_forgotten(loop: Loop) -> None:
    log: list[str] = []
    job, gone = Job(loop, "a", 1, log), Job(loop, "b", 1, log)
    loop.queue.add(job)
    loop.queue.add(job, heavy=True)
    loop.queue.add(gone)
    assert len(loop.queue) == 2
    loop.queue.discard(gone)
    loop.iterate()
    assert log == ["a"]


def test_reads_that_fill_an_iteration_make_it_busy_until_the_next(loop: Loop) -> None:
    queue = loop.queue
    used_up = []
    for _ in range(round(2 * TICK_S / SLICE_S) + 1):
        assert not queue.is_busy
        queue.begin()
        loop.now_s += SLICE_S / 2
        used_up.append(queue.end())
    assert not any(used_up)
    assert queue.is_busy
    loop.iterate()
    assert not queue.is_busy


def test_a_slice_is_longer_if_no_other_job_is_queued(loop: Loop) -> None:
    queue = loop.queue
    queue.begin()
    loop.now_s += 2 * SLICE_S
    assert not queue.is_over()
    assert queue.end(), "it took at least SLICE_S"
    assert not queue.is_over(), "no slice is open"
    queue.add(Job(loop, "a", 1, []))
    queue.begin()
    loop.now_s += SLICE_S * 1.001
    assert queue.is_over()
    queue.end()


def test_a_job_that_is_queued_during_a_slice_shortens_it(loop: Loop) -> None:
    queue = loop.queue
    queue.begin()
    loop.now_s += SLICE_S * 1.001
    assert not queue.is_over()
    queue.add(Job(loop, "a", 1, []))
    assert queue.is_over()
    queue.end()


def test_a_slice_within_a_slice_leaves_the_account_right(loop: Loop) -> None:
    queue = loop.queue
    queue.begin()
    queue.begin()
    loop.now_s += TICK_S / 4
    queue.end()
    loop.now_s += TICK_S / 4
    queue.end()
    assert not queue.is_busy
    queue.begin()
    loop.now_s += TICK_S / 2
    queue.end()
    assert queue.is_busy


def test_an_exception_in_one_job_does_not_stop_the_queue(loop: Loop) -> None:
    log: list[str] = []

    class Broken:
        def advance(self) -> bool:
            raise ZeroDivisionError

    loop.queue.add(Broken())
    loop.queue.add(Job(loop, "a", 1, log))
    with pytest.raises(ZeroDivisionError):
        loop.iterate()
    loop.iterate()
    assert log == ["a"]
