"""The toxics of a running server or tap, and the connections that have them.

    mock.faults.toxics.add("latency", latency=100, jitter=20, stream="upstream")
    mock.faults.toxics.clear("latency_upstream")

A toxic applies at once to open connections, and to later connections. Toxics of one direction apply in the order in
which they were added.

Invariants: the seed, the toxic's name and the connection's number decide which connections have a toxic, and the delays
and sizes drawn for it; a connection that never had a toxic behaves as without this module.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Unpack

from pydantic import TypeAdapter, ValidationError

from segstore.server.config import UnknownName, first_problem
from segstore.server.toxics.models import ActiveToxic, Toxic, ToxicOptions
from segstore.server.toxics.pipe import stage_of
from segstore.server.toxics.relay import Relay

if TYPE_CHECKING:
    from segstore.server.clock import Clock
    from segstore.server.toxics.pipe import ToxicStage
    from segstore.server.toxics.relay import RelayedProtocol

_TOXIC: TypeAdapter[Toxic] = TypeAdapter(Toxic)


class NoSuchToxic(UnknownName):
    """No toxic has that name."""

    kind = "toxic"


class _Wire:
    """An open connection, the stages of its toxics by name, and its relay, once it had a toxic."""

    def __init__(self, store: int, number: int) -> None:
        self.store = store
        self.number = number
        self.stages: dict[str, ToxicStage] = {}
        self.relay: Relay | None = None


class Toxics:
    """The toxics of a store, a cluster or a tap. seed: returns the seed of random choices, when a toxic is added."""

    def __init__(self, clock: Clock, seed: Callable[[], int]) -> None:
        self._clock = clock
        self._seed = seed
        self._toxics: dict[str, Toxic] = {}
        self._wires: dict[RelayedProtocol, _Wire] = {}

    def add(self, toxic: str | Toxic | dict[str, Any], **fields: Unpack[ToxicOptions]) -> str:
        """Adds a toxic and returns its name.

        toxic: a type, with its fields as keyword arguments, or a whole toxic, also as the object that files have.
        Raises ValueError for invalid fields, fields beside a whole toxic, if its name is taken, or if there are too
        many.
        """
        if fields and not isinstance(toxic, str):
            raise ValueError(f"{next(iter(fields))}: a whole toxic is given, which has its own fields")
        try:
            checked: Toxic = _TOXIC.validate_python({"type": toxic, **fields} if isinstance(toxic, str) else toxic)
        except ValidationError as error:
            raise ValueError(first_problem(error, Toxic)) from error
        name = checked.known_as
        if name in self._toxics:
            raise ValueError(f"there is a toxic with the name {name!r}")
        self._toxics[name] = checked
        for end, wire in list(self._wires.items()):
            if self._give(name, checked, wire):
                self._insert(end, wire, is_new=False)
        return name

    def clear(self, name: str | None = None) -> None:
        """Removes one toxic, or all. Bytes in flight arrive at once, unless other toxics delay them.

        Connections with a removed `timeout` are closed; connections with a removed `half_open`, or a `reset_peer` that
        has dropped data, are reset. Raises NoSuchToxic.
        """
        if name is not None and name not in self._toxics:
            raise NoSuchToxic(name, tuple(self._toxics))
        for removed in [name] if name is not None else list(self._toxics):
            del self._toxics[removed]
            for wire in list(self._wires.values()):
                stage = wire.stages.pop(removed, None)
                if stage is not None and wire.relay is not None:
                    self._use(wire)
                    if stage.at_removal is not None:
                        wire.relay.break_off(stage.at_removal)

    def tallies(self) -> list[ActiveToxic]:
        """Returns the toxics, in order, each with the number of open connections that have it."""
        wires = self._wires.values()
        return [
            ActiveToxic(name=name, toxic=toxic, connections=sum(name in wire.stages for wire in wires))
            for name, toxic in self._toxics.items()
        ]

    # --- for connections --------------------------------------------------------------------------------------------

    def connect(self, end: RelayedProtocol, *, store: int, number: int) -> None:
        """A connection is made: it is given its toxics. Call it while the transport reports this to the protocol."""
        self._wires[end] = wire = _Wire(store, number)
        for name, toxic in self._toxics.items():
            self._give(name, toxic, wire)
        if wire.stages:
            self._insert(end, wire, is_new=True)

    def disconnect(self, end: RelayedProtocol) -> None:
        """The connection is lost."""
        self._wires.pop(end, None)

    def _give(self, name: str, toxic: Toxic, wire: _Wire) -> bool:
        """Gives a toxic to a connection; returns False if it is not to have it."""
        if toxic.store is not None and toxic.store != wire.store:
            return False
        draws = random.Random(f"{self._seed()} {name} {wire.number}")
        if draws.random() >= toxic.toxicity:
            return False
        wire.stages[name] = stage_of(toxic, draws, self._clock.now_s())
        return True

    def _insert(self, end: RelayedProtocol, wire: _Wire, *, is_new: bool) -> None:
        if wire.relay is None:
            if end.transport is None or end.transport.is_closing():
                return
            wire.relay = Relay(end, self._clock, is_new=is_new)
            wire.relay.insert()
        self._use(wire)

    def _use(self, wire: _Wire) -> None:
        assert wire.relay is not None
        up, down = (
            [stage for name, stage in wire.stages.items() if stream in self._toxics[name].streams]
            for stream in ("upstream", "downstream")
        )
        wire.relay.use(up, down)
