"""Segment stores for tests: in the test's loop, in a thread, in a process."""

from segstore.loops import in_a_thread
from segstore.testing.fixtures import Explore, StartServer, StartTap, StartTrace
from segstore.testing.hosts import InAnotherProcess
from segstore.testing.servers import (
    AsyncView,
    Running,
    RunningFaults,
    RunningServer,
    RunningTap,
    RunningToxics,
    RunningTrace,
    ServerOptions,
    ServerProcess,
    Servers,
    ServerThread,
    Waits,
    WouldBlock,
)

__all__ = [
    "AsyncView",
    "Explore",
    "InAnotherProcess",
    "Running",
    "RunningFaults",
    "RunningServer",
    "RunningTap",
    "RunningToxics",
    "RunningTrace",
    "ServerOptions",
    "ServerProcess",
    "ServerThread",
    "Servers",
    "StartServer",
    "StartTap",
    "StartTrace",
    "Waits",
    "WouldBlock",
    "in_a_thread",
]
