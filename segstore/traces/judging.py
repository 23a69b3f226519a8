"""Follows the records of a trace for a filter, and judges them first if the filter reads verdicts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from segstore.wire.history import judge, placed
from segstore.wire.trace import Exchanges

if TYPE_CHECKING:
    from collections.abc import Iterable

    from segstore.wire.trace import Filter, Record


def reads_verdicts(match: Filter | None) -> bool:
    """Whether a filter names `broken`."""
    return match is not None and "broken" in match.names


def followed(
    records: Iterable[Record], match: Filter | None, *, follow: bool = True
) -> tuple[Iterable[Record], Exchanges]:
    """Returns the records and the `Exchanges` that takes them.

    If the filter names `broken`, all records are read and held in memory. follow: as of `Exchanges`.
    """
    if not reads_verdicts(match):
        return records, Exchanges(follow=follow)
    held = list(records)
    return held, Exchanges(follow=follow, broken=judge(placed(held)).by_record)
