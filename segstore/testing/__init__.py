"""Segment stores for tests: in the test's loop, in a thread, in a process."""

from segstore.testing.hosts import (
    InAnotherProcess,
)
from segstore.testing.servers import (
    AsyncView,
    Running,
    RunningFaults,
    RunningServer,
    RunningTap,
    RunningTrace,
    ServerProcess,
    Servers,
    ServerThread,
    Waits,
    WouldBlock,
    in_a_thread,
)

__all__ = [
    "AsyncView",
    "InAnotherProcess",
    "Running",
    "RunningFaults",
    "RunningServer",
    "RunningTap",
    "RunningTrace",
    "ServerProcess",
    "ServerThread",
    "Servers",
    "Waits",
    "WouldBlock",
    "in_a_thread",
]
