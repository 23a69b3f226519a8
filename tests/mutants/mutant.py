"""A mutant: a defect that is planted for a run, the rule that it breaks, and the scenario that exercises it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest

from segstore.explore.options import Client, ExplorerSetting
from segstore.explore.running import Run, run_once
from segstore.wire.history import Verdicts, judge, placed

Patch = Callable[[Any, str, Any], None]
"""`monkeypatch.setattr`."""
FAULTS = {
    "lost append": {"match": "type = APPEND_BLOCK_END", "nth": 2, "do": "close before"},
    "lost acknowledgement": {"match": "type = APPEND_BLOCK_END", "nth": 2, "do": "close after"},
    "lost answer of a conditional append": {"match": "type = CONDITIONAL_APPEND", "nth": 1, "do": "close after"},
}


class Mutant(NamedTuple):
    """A defect. plant: patches classes. fault: a name of `FAULTS` under which the defect shows; "" for none.

    stores: the number of stores of the scenario's cluster.
    """

    plant: Callable[[Patch], None]
    rule: str
    scenario: Client
    fault: str = ""
    stores: int = 1

    @property
    def name(self) -> str:
        return self.plant.__name__

    @contextmanager
    def planted(self) -> Iterator[None]:
        """Plants the defect for a while."""
        with pytest.MonkeyPatch.context() as patch:
            self.plant(patch.setattr)
            yield


class Planted(list[Mutant]):
    """A list of mutants, to which the functions that plant them are added by a decorator."""

    def mutant(self, rule: str, scenario: Client, fault: str = "", **more: Any) -> Callable[..., Any]:
        """Returns a decorator; the arguments are those of `Mutant`."""

        def add(plant: Callable[[Patch], None]) -> Callable[[Patch], None]:
            self.append(Mutant(plant, rule, scenario, fault, **more))
            return plant

        return add


async def judged(scenario: Client, fault: str = "", stores: int = 1, *, timeout_s: float = 3.0) -> tuple[Run, Verdicts]:
    """Runs a scenario on a fresh cluster, and judges the run."""

    async def with_fault(mock: Any) -> None:
        if fault:
            mock.faults.add(**FAULTS[fault])
        await scenario(mock)

    run = await run_once(ExplorerSetting(with_fault, timeout_s=timeout_s, stores=stores))
    return run, judge(placed(run.records, "run"))
