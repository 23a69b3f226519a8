"""The controller without its gRPC API: scopes, streams, transactions, reader groups and tables on one state.

It has no gRPC and no sockets: it is called, calls the segment store, and its owner calls `run_due` when timers are due.
Time comes from a function, randomness from a `Random`, so a test can simulate years at once.

Invariant: the state is the sum of the operations given to the core's journal. Unfinished work in an initial state
continues: its timers are set when the controller is created.
"""

from __future__ import annotations

import logging

from segstore.server.controller import streams as parts
from segstore.server.controller.errors import ControllerError
from segstore.server.controller.policies import StreamConfig
from segstore.server.controller.state import SYSTEM_SCOPE, Core, Due, Timer, image, recovered
from segstore.server.controller.state import operations as op

_log = logging.getLogger(__name__)


class Controller:
    """A controller.

    Attributes:
        state: its state; read-only.
        segments: its requests to segment stores.
    """

    def __init__(self, core: Core) -> None:
        self.core = core
        self.state = core.state
        self.segments = core.segments
        self.config = core.config
        self.now_ms = core.now_ms
        self.scaling = parts.Scaling(core)
        self.writers = parts.Writers(core)
        self.transactions = parts.Transactions(core, self.writers)
        self.streams = parts.Streams(core, self.scaling, self.transactions)
        self.tables = parts.Tables(core)
        self.reader_groups = parts.ReaderGroups(core, self.streams)
        self.scopes = parts.Scopes(core, self.streams, self.reader_groups, self.tables)
        self.upkeep = parts.Upkeep(core, self.streams, self.scaling)
        self.watermarks = parts.Watermarks(core, self.streams)
        self._begin()

    def _begin(self) -> None:
        """Sets the timers of the state's unfinished work, and creates the system scope if it is configured."""
        core = self.core
        if core.config.system_scope and SYSTEM_SCOPE not in core.state.scopes:
            core.record(op.ScopeCreated(SYSTEM_SCOPE, core.now_ms()))
        for stream in core.state.streams():
            if stream.scale is not None:
                core.schedule(stream.scale.due_ms, Due.SCALE, stream.scope, stream.name)
            for identifier in stream.transactions:
                self.transactions.watch(stream, identifier)
            self.upkeep.watch(stream.scope, stream.name)
            if stream.writers:
                core.schedule_once(core.config.watermark_every_ms, Due.WATERMARK, stream.scope, stream.name)

    def image(self) -> bytes:
        """The encoded state, for `restore`. Work in progress is part of it, and continues after a restore."""
        return image(self.state)

    def restore(self, state: bytes) -> None:
        """Replaces the state with an `image`; b"" is the empty state. No call may be in progress.

        Raises ValueError for an invalid image, and changes nothing.
        """
        self.core.replace(recovered(state, ()))
        self.upkeep.clear()
        self.watermarks.clear()
        self._begin()

    async def create_stream(self, scope: str, stream: str, config: StreamConfig) -> None:
        """Creates a stream and sets its timers."""
        await self.streams.create(scope, stream, config)
        self.upkeep.watch(scope, stream)

    async def update_stream(self, scope: str, stream: str, config: StreamConfig) -> None:
        """Updates a stream's configuration and its timers."""
        await self.streams.update(scope, stream, config)
        self.upkeep.watch(scope, stream)

    async def run_due(self) -> None:
        """Runs all due timers. Failures are logged and, where necessary, retried later."""
        for timer in self.core.take_due(self.core.now_ms()):
            try:
                await self._run(timer)
            except ControllerError:
                _log.exception("%s of stream %s/%s failed", timer.kind.value, timer.scope, timer.stream)

    async def _run(self, timer: Timer) -> None:
        match timer.kind:
            case Due.SCALE:
                await self.scaling.run(timer.scope, timer.stream)
            case Due.TRANSACTION:
                await self.transactions.run(timer)
            case Due.RETENTION:
                await self.upkeep.run_retention(timer.scope, timer.stream)
            case Due.LOAD:
                await self.upkeep.run_load(timer.scope, timer.stream)
            case Due.WATERMARK:
                await self.watermarks.run(timer.scope, timer.stream)
