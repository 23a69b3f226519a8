"""Which worker of pytest-xdist runs which test: groups whole in one worker, everything else item by item.

pytest-xdist has this as `--dist loadgroup`, by a suffix that its workers give the ids of tests; since pytest 9.1 ids
are made anew whenever they are asked for, and the suffix is gone. So groups go by the path of a test here.

Invariant: what is dear to start is started in one worker only. Groups begin first, the shortest tests (`tests/wire`)
come last, so that no worker waits for another for long.
"""

from __future__ import annotations

from typing import Final

from xdist.scheduler import LoadScopeScheduling

__all__ = ["ByGroup", "group_of"]

GROUPS: Final = {
    "tests/spark/": "spark",  # one session of Spark
    "tests/seeds/test_pip57_zookeeper.py": "zookeeper",
    "tests/test_serving_cluster.py": "zookeeper",
    "tests/test_packaging.py": "packaging",  # the wheel is built once
}
"""A folder or a file, and what the tests in it are together."""


def group_of(nodeid: str) -> str:
    """The group of a test; its own id if it has none."""
    return next((group for path, group in GROUPS.items() if nodeid.startswith(path)), nodeid)


class ByGroup(LoadScopeScheduling):  # type: ignore[misc,unused-ignore]
    """A group is a unit of work, and so is each test without one. Units of many tests are given out first."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)
