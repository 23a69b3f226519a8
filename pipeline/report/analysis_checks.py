"""The protocol rules as SQL conditions on single rows: a record and the columns that `analysis_steps` added to it.

Invariant: a condition reads only its own row. `analysis_steps` checks the other rules: FLOW_REUSE, which concerns two
set-ups, and BLOCK_TAIL and PADDED_DATA, which concern the bytes of append blocks. No Spark.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from segstore.pipeline.report.analysis_rules import ANSWERS, APPENDING, APPENDS, KEYS, REPLIES, REQUESTS, Rule


def names(some: Iterable[str]) -> str:
    """Formats names as an SQL list."""
    return ", ".join(f"'{name}'" for name in some)


_ANSWERED_BY: Final = "map({})".format(
    ", ".join(f"'{request}', array({names(sorted(replies))})" for request, replies in ANSWERS.items())
)
MISFIT: Final = f"""_step = -1 AND _request_command IS NOT NULL AND NOT failure
    AND NOT array_contains(element_at({_ANSWERED_BY}, _request_command), command)"""
"""Whether a reply is of a kind that does not answer its request."""


class Check(NamedTuple):
    """A rule with SQL expressions: when a record breaks it, and the expected and actual numbers."""

    rule: Rule
    when: str
    expected: str = "NULL"
    actual: str = "NULL"

    @property
    def found(self) -> str:
        """An SQL expression for the violation: a struct, or NULL if there is none."""
        return (
            f"CASE WHEN {self.when} THEN struct('{self.rule.name}' AS rule, "
            f"CAST({self.expected} AS BIGINT) AS expected, CAST({self.actual} AS BIGINT) AS actual) END"
        )


_REPLIES_ONLY: Final = tuple(name for name in REPLIES if name not in KEYS)
_REQUESTS_ONLY: Final = (*(name for name in REQUESTS if name not in KEYS), "APPEND_BLOCK")
_END: Final = "_role = 'append' AND command = 'APPEND_BLOCK_END'"
_CLOSES: Final = f"{_END} AND _started IS NOT NULL"
OWN: Final = f"{_CLOSES} AND _started.own"
"""Whether a record ends the append block of its own writer."""

CHECKS: Final = (
    Check(Rule.HELLO_FIRST, "kind = 'frame' AND _opened AND command <> 'HELLO' AND NOT _followed"),
    Check(
        Rule.DIRECTION,
        f"(direction = 'request' AND command IN ({names(_REPLIES_ONLY)})) OR "
        f"(direction = 'reply' AND command IN ({names(_REQUESTS_ONLY)}))",
    ),
    Check(Rule.FRAMES_ONLY, "kind = 'bytes'"),
    Check(Rule.DECODES, "kind = 'frame' AND error IS NOT NULL"),
    Check(Rule.KNOWN_COMMAND, "command = 'UNKNOWN'", "NULL", "code"),
    Check(Rule.AFTER_CLOSE, "kind IN ('frame', 'bytes') AND _closed"),
    Check(Rule.REPLY_WITHOUT_REQUEST, "_orphan"),
    Check(Rule.REPLY_KIND, "_misfit"),
    Check(Rule.REQUEST_ID_REUSE, f"_step = 1 AND command NOT IN ({names((*KEYS, *APPENDS))}) AND _waiting > 1"),
    Check(Rule.WRITER_UNKNOWN, "_role IN ('block', 'append') AND _epoch = 0 AND _opened"),
    Check(
        Rule.BLOCK_OPEN,
        "error IS NULL AND direction = 'request' AND _started IS NOT NULL "
        f"AND command IN ({names(name for name in APPENDING if name != 'APPEND_BLOCK_END')})",
    ),
    Check(Rule.WRITER_MISMATCH, f"{_CLOSES} AND NOT _started.own"),
    Check(
        Rule.WHOLE_SIZE,
        f"{OWN} AND size_of_whole_events NOT BETWEEN 0 AND _started.data_bytes",
        "_started.data_bytes",
        "size_of_whole_events",
    ),
    Check(Rule.NO_EVENTS, f"{_END} AND num_events <= 0", "1", "num_events"),
    Check(
        Rule.NUMBER_BACKWARDS,
        "_role = 'append' AND _epoch > 0 AND event_number < greatest(0, coalesce(_number_before, 0))",
        "greatest(0, coalesce(_number_before, 0))",
        "event_number",
    ),
    Check(Rule.ACK_BACKWARDS, "_role = 'ack' AND event_number < _ack_before", "_ack_before", "event_number"),
    Check(
        Rule.ACK_BEYOND,
        "_role = 'ack' AND _epoch > 0 AND (greatest(_number_before, _known_before) IS NULL "
        "OR event_number > greatest(_number_before, _known_before))",
        "greatest(_number_before, _known_before)",
        "event_number",
    ),
)

BROKEN: Final = """CASE WHEN {} THEN filter(array({}), each -> each IS NOT NULL) END""".format(
    " OR ".join(f"({each.when})" for each in CHECKS), ", ".join(each.found for each in CHECKS)
)
"""The rules that a record breaks, as a list; NULL for records that break none, because lists are slow."""
