"""Each mutant is found under its rule: by the judge on a run that exercises it, and by the explorer."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from segstore.client.errors import ClientError
from segstore.explore import explore
from segstore.wire import WireError
from segstore.wire.history import RULES
from tests.mutants.mutant import Mutant, judged
from tests.mutants.of_client import CLIENT
from tests.mutants.of_store import STORE
from tests.wire.history.support import broken

pytestmark = pytest.mark.usefixtures("grpc_runs")

MUTANTS = (*STORE, *CLIENT)
MUTANTS_LEAST = 40
MOST_REQUESTS = 40
FOUND_LEAST = 30
TIMEOUT_S = 4.0


@pytest.fixture(autouse=True)
def silent() -> Iterator[None]:
    """Mutants make the store log errors."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


async def test_scenarios_break_no_rule_without_a_mutant() -> None:
    without_fault = {(mutant.scenario, "", mutant.stores) for mutant in MUTANTS}
    for setting in without_fault | {(mutant.scenario, mutant.fault, mutant.stores) for mutant in MUTANTS}:
        run, verdicts = await judged(*setting, timeout_s=20.0)
        assert (run.error, run.is_hung, verdicts.broken) == (None, False, []), setting


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
async def test_a_mutant_is_found_under_its_rule(mutant: Mutant) -> None:
    with mutant.planted():
        _, verdicts = await judged(mutant.scenario, mutant.fault, mutant.stores)
    assert mutant.rule in verdicts.by_rule, verdicts


def test_each_mutant_has_a_name_of_its_own() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= MUTANTS_LEAST


KEYED = '{"segment": "s", "stream": "x", "key": "k", '
HISTORIES = {
    "key-order": "".join(f'w send {KEYED}"event": "{event}"}}\n' for event in "ab")
    + "".join(
        f'r poll {KEYED[:-2]}}} → ok {{"events": [[{offset}, "{event}"]]}}\n' for offset, event in ((5, "b"), (0, "a"))
    ),
    "window-over-event": 'w note-time {"stream": "x", "timestamp": 100}\nr window {"stream": "x", "lower": 120}\n',
}
"""Of rules that are judged in users' histories only: histories that break them."""


def test_each_rule_has_a_mutant_or_a_history() -> None:
    assert {mutant.rule for mutant in MUTANTS} == RULES.keys() - HISTORIES.keys()
    for rule, history in HISTORIES.items():
        assert RULES[rule].judged_in.startswith("histories")
        assert broken(history)[rule] == 1, rule


class _Found(Exception):
    """Ends an exploration."""


async def explored(mutant: Mutant) -> tuple[int, bool]:
    """Explores a mutant's scenario until its rule is broken; returns the requests of the good run and whether it is."""

    def tell(done: int, of: int, finding: Any) -> None:
        if finding is not None and mutant.rule in finding.kinds:
            raise _Found

    async def client(mock: Any) -> None:
        with suppress(ClientError, WireError):  # a client that fails in its good run is not explored
            await mutant.scenario(mock)

    # One run at a time: mutants share what they remember between clusters.
    good = await explore(client, failures=(), timeout_s=TIMEOUT_S, stores=mutant.stores, jobs=1)
    requests = sum(len(alike.points) for alike in good.classes)
    if any(mutant.rule in finding.kinds for finding in good.findings):
        return requests, True
    is_found = False
    try:
        await explore(client, timeout_s=TIMEOUT_S, stores=mutant.stores, tell=tell, jobs=1)
    except* _Found:
        is_found = True
    return requests, is_found


@pytest.mark.long
async def test_the_explorer_finds_mutants_from_a_short_good_run() -> None:
    missed, found = [], 0
    for mutant in MUTANTS:
        with mutant.planted():
            requests, is_found = await explored(mutant)
        found += is_found and requests < MOST_REQUESTS
        if not is_found:
            missed.append(mutant.name)
    assert missed == []
    assert found >= FOUND_LEAST
