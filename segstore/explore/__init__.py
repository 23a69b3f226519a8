"""The explorer: reruns a client once for each failure at each point of its run, and judges what it did.

    explored = await explore(lambda mock: my_test(mock.host, mock.port))
    assert not explored.findings, str(explored)

A finding holds the records of its run or, for requests from a trace, of the shortest trace that fails in the same way.
"""

from segstore.explore.commands import ClientFailed, CommandClient, CommandError, names_place, words_of
from segstore.explore.exploring import Plan, explore, explore_trace, wanted_of
from segstore.explore.failures import Failure, failures_at
from segstore.explore.options import Client, ExploreOptions
from segstore.explore.points import Point, PointClass
from segstore.explore.results import Exploration, Finding, baseline, grouped, junit, shown, write_fixture, write_matrix
from segstore.explore.running import ExploredCluster, Injection, NotPrepared

__all__ = [
    "Client",
    "ClientFailed",
    "CommandClient",
    "CommandError",
    "Exploration",
    "ExploreOptions",
    "ExploredCluster",
    "Failure",
    "Finding",
    "Injection",
    "NotPrepared",
    "Plan",
    "Point",
    "PointClass",
    "baseline",
    "explore",
    "explore_trace",
    "failures_at",
    "grouped",
    "junit",
    "names_place",
    "shown",
    "wanted_of",
    "words_of",
    "write_fixture",
    "write_matrix",
]
