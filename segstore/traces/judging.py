"""Follows the records of a trace for a filter, and judges them first if the filter reads verdicts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from segstore.wire.history import judge, placed
from segstore.wire.trace import Exchanges

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from segstore.wire.history import Verdicts
    from segstore.wire.trace import Damage, Filter, Record


def reads_verdicts(match: Filter | None) -> bool:
    """Whether a filter names `broken`."""
    return match is not None and "broken" in match.names


def judged(records: Iterable[Record], damages: Sequence[Damage]) -> Verdicts:
    """Judges one trace as `segstore.check` does. damages: of the trace, complete once its records are read."""
    verdicts = judge(placed(records))
    return verdicts.known({""} if any(not damage.torn for damage in damages) else ())


def followed(
    records: Iterable[Record], match: Filter | None, *, follow: bool = True, damages: Sequence[Damage] = ()
) -> tuple[Iterable[Record], Exchanges]:
    """Returns the records and the `Exchanges` that takes them.

    If the filter names `broken`, all records are read and held in memory. follow: as of `Exchanges`.
    damages: as of `judged`.
    """
    if not reads_verdicts(match):
        return records, Exchanges(follow=follow)
    held = list(records)
    return held, Exchanges(follow=follow, broken=judged(held, damages).by_record)
