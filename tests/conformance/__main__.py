"""`python -m tests.conformance [DIR …]`: runs recorded files and prints every disagreement."""

import asyncio
import os
import sys
import time
from pathlib import Path

import click

from segstore.cli.terminal import echo, log_plainly
from segstore.wire.patterns import regular_expression
from tests.conformance import vectors
from tests.conformance.conversations import Choice, run_conversations
from tests.conformance.recorded import Kind, Line, Unreadable, read_lines, recorded_files
from tests.conformance.report import Report

ROOT = Path(__file__).resolve().parents[2]


def default_folders() -> list[Path]:
    """Returns fixtures/ of the checkout and, if present, the recordings beside it, as relative paths."""
    beside = ROOT.parent / "shared"
    folders = [ROOT / "fixtures", beside / "vectors", beside / "conversations"]
    return [Path(os.path.relpath(folder)) for folder in folders if folder.is_dir()]


def run(folder: Path, choice: Choice) -> tuple[bool, int]:
    """Runs all recorded files of a folder and prints reports; returns whether all agree, and the number of cases."""
    files = recorded_files(folder)
    if not files:
        echo(f"{folder}: no file whose name ends in .jsonl or .json")
        return False, 0
    ok, cases = True, 0
    for path in files:
        report = Report(str(path))
        try:
            _run_file(path, report, choice)
        except Unreadable as error:
            report.failure = str(error)
        for line in report.lines():
            echo(line)
        ok = ok and report.ok
        cases += report.cases
    return ok, cases


def _run_file(path: Path, report: Report, choice: Choice) -> None:
    dialogues: list[Line] = []
    for line in read_lines(path):
        if line.kind is Kind.CONVERSATION and not choice.only_vectors:
            dialogues.append(line)
        elif not choice.only_conversations:
            report.add(vectors.check(line))
    if dialogues:
        asyncio.run(run_conversations(path, dialogues, report, choice))


@click.command()
@click.argument("folders", metavar="[DIR]...", nargs=-1, type=click.Path(exists=True, path_type=Path))
@click.option("--only", metavar="REGEX", default="", help="Only dialogues whose name matches.")
@click.option("--families", metavar="A,B,…", default="", help="Only dialogues whose name starts with one of these.")
@click.option("--racy", is_flag=True, help="Include dialogues that vary in the reference itself.")
@click.option("--only-vectors", is_flag=True, help="Only the codec; starts no server.")
@click.option("--only-conversations", is_flag=True, help="Only dialogues, no vectors.")
@click.option("--at", "data", metavar="HOST:PORT", help="Use a running server instead of fresh ones.")
@click.option("--admin-at", "admin", metavar="HOST:PORT", help="Admin port of the running server.")
@click.option("--setups", metavar="A,B,…", default="", help="Only dialogues with these server set-ups.")
def main(
    folders: tuple[Path, ...], only: str, families: str, setups: str, data: str | None, admin: str | None, **flags: bool
) -> None:
    """Run recorded vectors and conversations: those in DIR, or in fixtures/ and, if present, ../shared."""
    try:
        choice = Choice(
            only=regular_expression(only),
            families=frozenset(families.split(",")) if families else None,
            setups=frozenset(setups.split(",")) if setups else None,
            running=Choice.at(data, admin),
            **flags,
        )
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    log_plainly()
    started = time.monotonic()
    results = [run(folder, choice) for folder in folders or default_folders()]
    ok = all(agree for agree, _ in results)
    if not results:
        echo(f"{ROOT}: there are no fixtures/; name a folder")
    elif ok and not any(cases for _, cases in results):
        echo("no case was chosen")
        ok = False
    ok = ok and bool(results)
    echo(f"{'all agree' if ok else 'NOT all agree'}, in {time.monotonic() - started:.1f} s")
    sys.exit(0 if ok else 1)


if __name__ == "__main__":
    main(prog_name="python -m tests.conformance")
