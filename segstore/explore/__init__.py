"""The race explorer: reruns a dialogue once per point at which its connection can be cut."""

from segstore.explore.command import CommandError, words_of
from segstore.explore.explorer import (
    ClientFailed,
    Exploration,
    ExploreOptions,
    Finding,
    explore,
    explore_command,
    explore_trace,
)

__all__ = [
    "ClientFailed",
    "CommandError",
    "Exploration",
    "ExploreOptions",
    "Finding",
    "explore",
    "explore_command",
    "explore_trace",
    "words_of",
]
