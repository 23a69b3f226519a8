"""Which store takes a container that nobody owns, and how many a store gives up: pure functions of load reports."""

from hypothesis import given
from hypothesis import strategies as st

from segstore.server.coordination.placement import LoadReport, surplus, turn
from tests.looped import looped


def report(containers: int, **more: float) -> LoadReport:
    return LoadReport(containers, **more)  # type: ignore[arg-type]


def test_the_store_with_the_fewest_containers_is_first_then_fewest_bytes_then_connections_then_its_name() -> None:
    def first(**reports: LoadReport) -> str:
        return min(reports, key=lambda name: turn(name, 0, [0], reports))

    assert first(a=report(2), b=report(1, bytes_per_s=9.0)) == "b"
    assert first(a=report(1, bytes_per_s=2.0), b=report(1, bytes_per_s=1.0, connections=9)) == "b"
    assert first(a=report(1, connections=2), b=report(1, connections=1)) == "b"
    assert first(b=report(1), a=report(1)) == "a"


def test_containers_are_dealt_out_one_by_one_and_each_counts_for_the_next() -> None:
    reports = {"a": report(0), "b": report(0), "c": report(2)}
    firsts = [min(reports, key=lambda name: turn(name, each, range(5), reports)) for each in range(5)]
    assert firsts == ["a", "b", "a", "b", "a"]


def test_a_store_without_a_report_has_nothing_yet() -> None:
    assert turn("new", 0, [0], {"a": report(1)}) == 0
    assert turn("a", 0, [0], {"a": report(1)}) == 0


@given(st.integers(1, 5), st.sets(st.integers(0, 9), min_size=1), st.lists(st.integers(0, 4), min_size=5, max_size=5))
def test_all_stores_agree_on_the_order(stores: int, unowned: set[int], counts: list[int]) -> None:
    reports = {str(each): report(counts[each]) for each in range(stores)}
    for container in unowned:
        assert sorted(turn(name, container, unowned, reports) for name in reports) == list(range(stores))


@looped(
    ("owned", "containers", "stores", "given_up"),
    [(4, 4, 2, 2), (3, 5, 2, 0), (4, 5, 2, 1), (1, 5, 2, 0), (5, 5, 1, 0), (5, 5, 0, 0)],
)
def test_a_store_gives_up_what_it_has_above_the_larger_share(
    owned: int, containers: int, stores: int, given_up: int
) -> None:
    assert surplus(owned, containers, stores) == given_up
