"""The single-process reference finds how every planted exchange ended, and nothing else."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from segstore.pipeline.report.analysis_rules import EXCHANGE_COLUMNS, REPLIES, Status
from segstore.pipeline.report.reference import Reference, reference
from segstore.wire.protocol import ANSWERS
from segstore.wire.schema import COMMANDS
from tests.pipeline.planted import planted
from tests.pipeline.support import write_capture

RECORDED = Path(__file__).parent.parent.parent.parent / "fixtures" / "traces"
AT = {name: at for at, name in enumerate(EXCHANGE_COLUMNS)}


def counts(found: Reference) -> tuple[Counter[str], int]:
    """How exchanges ended, but for those that went well; requests without a reply of their own."""
    ended = Counter(row[AT["status"]] for row in found.exchanges)
    del ended[Status.ANSWERED]
    unpaired = sum(row[AT["paired"]] is False for row in found.exchanges)
    return ended, unpaired


@pytest.mark.parametrize("seed", range(5))
def test_every_planted_end_is_found_and_nothing_else(tmp_path: Path, seed: int) -> None:
    records, expected = planted(seed)
    found = reference(str(write_capture(tmp_path / "a.wtrace", records, a_block=50)))
    ended, unpaired = counts(found)
    assert ended == expected.ended
    assert unpaired == expected.unpaired


def test_every_end_is_planted() -> None:
    _, expected = planted(0)
    assert expected.ended.keys() == set(Status) - {Status.ANSWERED}


def test_the_requests_of_the_official_clients_are_answered_or_given_up() -> None:
    found = reference(str(RECORDED))
    assert found.skipped == []
    ended, unpaired = counts(found)
    assert ended == {Status.GIVEN_UP: 9, Status.REFUSED: 9}
    assert unpaired == 9


def test_what_answers_what_names_every_request_and_every_reply() -> None:
    asking = {cls.type_name for cls in COMMANDS.values() if cls.is_request} | {"APPEND_BLOCK_END"}
    assert ANSWERS.keys() == asking
    failures = {cls.type_name for cls in COMMANDS.values() if cls.is_failure}
    assert set().union(*ANSWERS.values()) | failures == set(REPLIES)
