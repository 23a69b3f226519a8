"""`segstore check`: judges traces and histories.

Exit status: 0 if no rule is broken; 1 if a rule is broken, or a part cannot be read; 2 for wrong options, and for input
that is no trace.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from segstore.cli.terminal import NewPath, echo, error_text

if TYPE_CHECKING:
    from segstore.check import Report


def _print_rules(context: click.Context, _: click.Parameter, asked: bool) -> None:
    if asked and not context.resilient_parsing:
        from segstore.wire.history import RULES

        for rule in RULES.values():
            echo(f"{rule.id}: {rule.text}")
        context.exit()


@click.command(short_help="Judge traces and histories.")
@click.argument("paths", metavar="TRACE…", nargs=-1, required=True, type=click.Path(path_type=str))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--junit", type=NewPath(path_type=Path), metavar="FILE", help="Also write JUnit XML.")
@click.option(
    "--out",
    type=NewPath(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Write a fixture for each verdict on a trace: the fewest exchanges that break the rule.",
)
@click.option(
    "--rules", is_flag=True, is_eager=True, expose_value=False, callback=_print_rules, help="List the rules and exit."
)
def check(paths: tuple[str, ...], as_json: bool, junit: Path | None, out: Path | None) -> int:
    """Judge whether what clients and stores did was right: traces of any form, and histories of JSON lines.

    A verdict names the rule, the records that show it, and what to look at next. What the records do not decide is
    counted as unknown.
    """
    from segstore.check import check as judged
    from segstore.pipeline.compressed import BadLimit
    from segstore.wire.errors import WireError

    try:
        report = judged(paths)
    except (OSError, BadLimit, WireError) as error:
        raise click.UsageError(error_text(error) if isinstance(error, OSError) else str(error)) from error
    for line in [json.dumps(report.to_dict())] if as_json else report.text().splitlines():
        echo(line)
    if junit is not None:
        junit.write_bytes(report.junit())
    if out is not None:
        _write_fixtures(report, paths, out)
    return 1 if report.broken or report.skipped else 0


def _write_fixtures(report: Report, paths: tuple[str, ...], out: Path) -> None:
    from segstore.check import records_of, reduced
    from segstore.traces import make_folder, write_trace
    from segstore.wire.trace import Metadata

    traces = [path for path in paths if path not in report.histories]
    make_folder(out)
    records = list(records_of(traces, [], set())) if traces else []
    number = 0
    for verdict in report.broken:
        if verdict.places[-1].file in report.histories:
            continue
        number += 1
        path = out / f"{verdict.rule}-{number}.jsonl"
        values: dict[str, Any] = {"rule": verdict.rule, "broken": verdict.text}
        numbers: dict[tuple[str, int], int] = {}
        fewest = [
            # Connections of several files may have the same number; controller calls have the number 0.
            record._replace(connection=numbers.setdefault((place.file, place.connection), len(numbers) + 1))
            if place.connection
            else record
            for place, record in reduced(records, verdict)
        ]
        write_trace(path, fewest, partial(Metadata, 17, "segstore check", values))
        echo(f"written to {path}", err=True)
