"""Node selection and connection-setup timeouts, as pure state over nodes and clock readings.

    DISCONNECTED ──connecting()──▶ CONNECTING ──ready()──▶ READY
          ▲                            │                     │
          └───────disconnected()───────┴─────────────────────┘

There is no timeout state: an attempt that takes too long is cancelled and its node becomes DISCONNECTED. Only nodes in
CONNECTING are timed, by the caller. Each consecutive set-up failure doubles the timeout and back-off of its node; READY
resets both.

Invariant: a timeout never exceeds its maximum. The caller passes times, in milliseconds of any monotonic clock, and the
`Random` for the jitter. Nothing here does I/O; a transition that the table lacks is a caller's bug and raises
`ValueError`.

Follows KIP-601, `ClusterConnectionStates` and `NetworkClient.leastLoadedNode` (Kafka). Deliberate differences: nodes
are considered in the order given (Kafka starts at a random node); disconnected nodes are chosen by failed attempts, as
the KIP says, while `least_recently_tried` is what Kafka shipped.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from enum import Enum, auto
from random import Random
from typing import Final, Generic, TypeVar

import msgspec

from segstore.client.retry import Backoff

N = TypeVar("N", bound=Hashable)


class NodeState(Enum):
    """The connection state of a node."""

    DISCONNECTED = auto()
    CONNECTING = auto()
    READY = auto()


TRANSITIONS: Final = {
    (NodeState.DISCONNECTED, NodeState.CONNECTING),
    (NodeState.CONNECTING, NodeState.READY),
    (NodeState.CONNECTING, NodeState.DISCONNECTED),
    (NodeState.READY, NodeState.DISCONNECTED),
}


class SetupHistory:
    """The set-up history of one node, which determines its next timeout and back-off.

    Attributes:
        failures: consecutive failed set-ups and lost connections; determines the back-off.
        failed_setups: consecutive failed set-ups; determines the timeout.
        last_attempt_ms: start of the last attempt; None before the first.
    """

    def __init__(self, timeouts: Backoff, backoff: Backoff, random: Random) -> None:
        self._timeouts = timeouts
        self._backoff = backoff
        self._random = random
        self.failures = 0
        self.failed_setups = 0
        self.last_attempt_ms: float | None = None
        self._retry_at_ms = float("-inf")
        self.timeout_ms = timeouts.delay_ms(1, random)

    def wait_ms(self, now_ms: float) -> float:
        """The remaining back-off."""
        return max(self._retry_at_ms - now_ms, 0.0)

    def succeeded(self) -> None:
        self.failures = self.failed_setups = 0
        self._retry_at_ms = float("-inf")
        self.timeout_ms = self._timeouts.delay_ms(1, self._random)

    def failed(self, now_ms: float, *, while_setting_up: bool) -> None:
        self.failures += 1
        self._retry_at_ms = now_ms + self._backoff.delay_ms(self.failures, self._random)
        if while_setting_up:
            self.failed_setups += 1
            self.timeout_ms = self._timeouts.delay_ms(self.failed_setups + 1, self._random)


class KnownNode(msgspec.Struct):
    """A node: its set-up history, its state, and the number of its requests in flight."""

    history: SetupHistory
    state: NodeState = NodeState.DISCONNECTED
    in_flight: int = 0


class NodeStates(Generic[N]):
    """The states of a cluster's nodes, as seen by one client. `states[node]` is a node's."""

    def __init__(
        self,
        nodes: Iterable[N],
        *,
        timeouts: Backoff,
        backoff: Backoff,
        random: Random,
        least_recently_tried: bool = False,
    ) -> None:
        self._nodes: dict[N, KnownNode] = {node: KnownNode(SetupHistory(timeouts, backoff, random)) for node in nodes}
        self._least_recently_tried = least_recently_tried

    def __iter__(self) -> Iterator[N]:
        return iter(self._nodes)

    def __getitem__(self, node: N) -> KnownNode:
        return self._nodes[node]

    # --- events -----------------------------------------------------------------------------------------------------

    def _move(self, node: N, state: NodeState) -> KnownNode:
        entry = self._nodes[node]
        if (entry.state, state) not in TRANSITIONS:
            raise ValueError(f"{node} is {entry.state.name} and cannot become {state.name}")
        entry.state = state
        return entry

    def connecting(self, node: N, now_ms: float) -> float:
        """Starts a set-up; returns its timeout in milliseconds."""
        entry = self._move(node, NodeState.CONNECTING)
        entry.history.last_attempt_ms = now_ms
        return entry.history.timeout_ms

    def ready(self, node: N) -> None:
        """Records that the node's connection is set up."""
        entry = self._move(node, NodeState.READY)
        entry.history.succeeded()

    def disconnected(self, node: N, now_ms: float) -> None:
        """Records that the connection or the attempt ended, for any reason, along with its requests in flight."""
        was_connecting = self._nodes[node].state is NodeState.CONNECTING
        entry = self._move(node, NodeState.DISCONNECTED)
        entry.in_flight = 0
        entry.history.failed(now_ms, while_setting_up=was_connecting)

    def sent(self, node: N) -> None:
        """Records that a request was sent."""
        self._nodes[node].in_flight += 1

    def answered(self, node: N) -> None:
        """Records that a request is no longer in flight; a no-op if a disconnect has already ended it."""
        entry = self._nodes[node]
        entry.in_flight = max(entry.in_flight - 1, 0)

    # --- queries ----------------------------------------------------------------------------------------------------

    def can_connect(self, node: N, now_ms: float) -> bool:
        """Whether the node is disconnected and past its back-off."""
        entry = self._nodes[node]
        return entry.state is NodeState.DISCONNECTED and entry.history.wait_ms(now_ms) <= 0

    def wait_ms(self, now_ms: float) -> float:
        """The time until the first disconnected node is past its back-off."""
        waits = [
            entry.history.wait_ms(now_ms) for entry in self._nodes.values() if entry.state is NodeState.DISCONNECTED
        ]
        return min(waits, default=0.0)

    def least_loaded(self, now_ms: float) -> N | None:
        """Returns the node to ask next, or None.

        Prefers the connected node with the fewest requests in flight (the first idle one ends the search); then the
        last connecting node; then, among disconnected nodes past their back-off, the one with the fewest failed
        attempts, and of these the one tried longest ago.
        """
        best: N | None = None
        fewest = 0
        connecting: N | None = None
        for node, entry in self._nodes.items():
            if entry.state is NodeState.READY:
                if entry.in_flight == 0:
                    return node
                if best is None or entry.in_flight < fewest:
                    best, fewest = node, entry.in_flight
            elif entry.state is NodeState.CONNECTING:
                connecting = node
        if best is not None:
            return best
        if connecting is not None:
            return connecting
        free = [node for node in self._nodes if self.can_connect(node, now_ms)]
        return min(free, key=self._preference, default=None)

    def _preference(self, node: N) -> tuple[int, float]:
        history = self._nodes[node].history
        tried = float("-inf") if history.last_attempt_ms is None else history.last_attempt_ms
        return 0 if self._least_recently_tried else history.failures, tried
