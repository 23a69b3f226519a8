"""Runs files of recorded dialogues against fresh servers with the configurations that they require.

Dialogues with segments of their own run concurrently, because most of a dialogue is waiting. Dialogues of a set-up that
accumulates data run one after another, in file order.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import msgspec

from tests.conformance import vectors
from tests.conformance.dialogues import Dialogue, hold
from tests.conformance.recorded import Line, Unreadable
from tests.conformance.report import Report, Verdict
from tests.conformance.servers import ADMIN, SETUPS, Stores, fresh_server

AT_ONCE: Final = 16
IN_ORDER: Final = frozenset({"clean"})
"""Set-ups whose dialogues depend on earlier ones."""


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """Selects what to run from recorded files; None for all. running: a server to use instead of fresh ones."""

    only: Callable[[str], bool]
    families: frozenset[str] | None = None
    setups: frozenset[str] | None = None
    racy: bool = False
    only_vectors: bool = False
    only_conversations: bool = False
    running: Stores | None = None

    @staticmethod
    def at(data: str | None, admin: str | None) -> Stores | None:
        """Parses the addresses of a running server. Raises ValueError."""
        if data is None:
            if admin is not None:
                raise ValueError("an admin port without a data port")
            return None
        return Stores.parse(data, admin)

    def takes(self, dialogue: Dialogue) -> bool:
        """Whether the dialogue is selected, regardless of whether it is racy."""
        return (
            self.only(dialogue.name)
            and (self.families is None or dialogue.family in self.families)
            and (self.setups is None or dialogue.setup in self.setups)
        )


async def run_conversations(path: Path, records: Sequence[Line], report: Report, choice: Choice) -> None:
    """Runs the dialogues of one file and adds their verdicts to the report. Raises Unreadable.

    Fields that a recording has beside its bytes are also compared with the codec.
    """
    by_setup: dict[str, list[tuple[Dialogue, Line]]] = {}
    for record in records:
        try:
            dialogue = Dialogue.from_record(record.what)
        except ValueError as cause:
            raise Unreadable(str(cause), path=path, line=record.number) from cause
        if dialogue.setup not in SETUPS:
            known = ", ".join(SETUPS)
            raise Unreadable(f"no server set-up {dialogue.server!r}: {known}", path=path, line=record.number)
        if not choice.takes(dialogue):
            continue
        if dialogue.racy and not choice.racy:
            report.left_out += 1
            continue
        by_setup.setdefault(dialogue.setup, []).append((dialogue, record))
    for setup, chosen in by_setup.items():
        dialogues = [dialogue for dialogue, _ in chosen]
        async with _server(setup, choice) as stores:
            verdicts = await _hold_all(dialogues, stores, 1 if setup in IN_ORDER else AT_ONCE)
        for verdict, (_, record) in zip(verdicts, chosen, strict=True):
            codec = vectors.check(record)
            report.add(msgspec.structs.replace(verdict, differences=verdict.differences + codec.differences))


@asynccontextmanager
async def _server(setup: str, choice: Choice) -> AsyncIterator[Stores]:
    if choice.running is not None:
        yield choice.running
        return
    async with fresh_server(setup) as stores:
        yield stores


async def _hold_all(dialogues: list[Dialogue], stores: Stores, at_once: int) -> list[Verdict]:
    places = asyncio.Semaphore(at_once)

    async def one(dialogue: Dialogue) -> Verdict:
        address = stores.admin if dialogue.server.endswith(ADMIN) else stores.data
        if address is None:
            return Verdict(dialogue.name, ("the server has no admin port",))
        async with places:
            try:
                return await hold(dialogue, address)
            except (OSError, TimeoutError) as error:
                return Verdict(dialogue.name, (f"the server cannot be reached: {type(error).__name__}: {error}",))

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(dialogue)) for dialogue in dialogues]
    return [task.result() for task in tasks]
