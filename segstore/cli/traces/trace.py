"""`segstore trace show | stats | view | report | filter | diff | convert | index`: inspects and rewrites traces.

Invariant: readable parts of a trace are used; damage is reported on standard error with its position and size, and the
exit status is then 1. Delegation tokens are shown only on request; written traces keep them unless `--redact` is given.
"""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from segstore.cli.terminal import INPUT_FILE, NewPath, Rereadable, echo, error_text, is_pipe, reader_gone
from segstore.cli.traces.records import ignore_option, reading
from segstore.cli.traces.report import report

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from segstore.traces import TraceFile
    from segstore.wire.trace import Call, Damage, Difference, Exchange, Exchanges, Filter, Record

_FOLLOW_S: Final = 0.2
_MOST_PLACES: Final = 8
"""Maximum number of printed differences in a payload."""

_OUT = NewPath(dir_okay=False, path_type=Path)
_REREAD = Rereadable(exists=True, dir_okay=False, allow_dash=True, path_type=Path)


@click.group(short_help="Inspect, compare and convert traces.")
def trace() -> None:
    """Inspect and rewrite traces: captures (.wtrace), fixtures (.jsonl) and packets (.pcapng).

    A trace that is read may be a pipe, or standard input (-).
    """


trace.add_command(report)


_FILTER: Final = "'-f' / '--filter'"


def _filter(ctx: click.Context, option: click.Parameter, text: str | None) -> Filter | None:
    from segstore.wire.trace import FilterError, parse_filter

    try:
        return None if text is None else parse_filter(text)
    except FilterError as error:
        raise click.BadParameter(str(error), ctx, option) from error


_filter_help = "Select the records that match, e.g. 'type = READ_SEGMENT and latency > 5ms'."
_filter_option = click.option("-f", "--filter", "chosen", metavar="EXPR", callback=_filter, help=_filter_help)
_compress_option = click.option("--compress", is_flag=True, help="Compress the blocks of a capture.")
_redact_option = click.option("--redact", is_flag=True, help="Overwrite delegation tokens, keeping their lengths.")


def _followed(
    records: Iterable[Record], chosen: Filter | None, *, follow: bool = False, damages: Sequence[Damage] = ()
) -> tuple[Iterable[Record], Exchanges]:
    """As `followed`. follow: whether to pair replies with requests even if the filter does not need it."""
    from segstore.traces import followed
    from segstore.wire.trace import Exchanges

    needed = chosen is not None and Exchanges.needed(chosen.names)
    return followed(records, chosen, follow=follow or needed, damages=damages)


def _matching(
    records: Iterable[Record], chosen: Filter, damages: Sequence[Damage], *, follow: bool = False
) -> Iterator[tuple[int, Exchange]]:
    """The exchanges of a trace that match, with their places, in order. Refuses a filter that none can match."""
    from segstore.wire.trace import OF_REPLIES

    records, exchanges = _followed(records, chosen, follow=follow, damages=damages)
    matching: Iterator[tuple[int, Exchange]] = (
        (place, seen) for place, seen in enumerate(map(exchanges.see, records)) if chosen(seen)
    )
    if not chosen.names.isdisjoint(OF_REPLIES):  # a request learns these facts from its reply
        matching = _in_order(exchanges.settled(records), chosen)
    first = next(matching, None)
    if first is None:
        _check_possible(chosen)
        return
    yield first
    yield from matching


def _in_order(settled: Iterable[tuple[int, Exchange]], chosen: Filter) -> Iterator[tuple[int, Exchange]]:
    """The exchanges that match, in order. They are held while an earlier request waits for its reply."""
    held: dict[int, Exchange | None] = {}
    following = 0
    for place, seen in settled:
        held[place] = seen if chosen(seen) else None
        while following in held:
            if (match := held.pop(following)) is not None:
                yield following, match
            following += 1


def _check_possible(chosen: Filter) -> None:
    """Refuses a filter that no record can match. A record that breaks the protocol may match it all the same."""
    from segstore.wire.trace import check_possible

    try:
        check_possible(chosen, "trace")
    except ValueError as error:
        raise click.BadParameter(str(error), click.get_current_context(), param_hint=_FILTER) from error


def _check_output(output: Path, *sources: Path) -> None:
    """Refuses to write over a file that is read, also by the name of a link to it."""
    for source in sources:
        if output.is_file() and source.is_file() and output.samefile(source):
            problem = f"{output}: the output is the same file as the input {source}"
            raise click.UsageError(problem, click.get_current_context())


def _status(*opened: TraceFile) -> int:
    return 1 if any(trace_file.damages for trace_file in opened) else 0


# --- inspecting -------------------------------------------------------------------------------------------------


@trace.command(short_help="Print records.")
@click.argument("source", metavar="FILE", type=INPUT_FILE)
@_filter_option
@click.option("--json", "form", flag_value="json", help="Print one JSON object per line, as in a fixture.")
@click.option("--hex", "form", flag_value="hex", help="Print every byte with its field.")
@click.option("--full", is_flag=True, help="Print long texts, payloads and lists whole.")
@click.option("--show-tokens", is_flag=True, help="Print delegation tokens too.")
@click.option("--follow", is_flag=True, help="Continue with records that a server adds to a capture, until Ctrl-C.")
def show(source: Path, chosen: Filter | None, form: str | None, full: bool, show_tokens: bool, follow: bool) -> int:
    """Print the records of a trace: seconds since its start, connection, direction, command.

    Events are taken out of appends and reads; text and JSON are printed as text, other bytes as hex.

    Filters can use these names: type kind rpc status code segment stream scope data flow sequence request_id
    writer_id connection direction failure malformed size latency time broken.
    """
    from segstore.traces import redacted
    from segstore.wire.trace import to_line

    ended = contextlib.suppress(KeyboardInterrupt) if follow else contextlib.nullcontext()
    with reading(source) as (opened, records), ended:
        if follow:
            records = opened.follow(_wait)
        if form == "json" and not show_tokens:
            records = redacted(records)
        for seen in _shown(records, chosen, opened.damages, pair=form is None, follow=follow):
            if form == "json":
                echo(to_line(seen.record, seen.record.ts_ns - seen.time_ns))
                continue
            echo(_one_line(seen, full, show_tokens), fg=_colour(seen))
            if form == "hex" and seen.kind in ("frame", "bytes"):
                for line in _annotated(seen.record.data, show_tokens, full):
                    echo(line)
    return _status(opened)


def _shown(
    records: Iterable[Record], chosen: Filter | None, damages: Sequence[Damage], *, pair: bool, follow: bool
) -> Iterator[Exchange]:
    """The exchanges to show. pair: whether replies are shown with their latency. follow: whether the trace grows."""
    from segstore.traces import reads_verdicts
    from segstore.wire.trace import OF_REPLIES

    if chosen is not None and not follow:
        return (seen for _, seen in _matching(records, chosen, damages, follow=pair))
    if reads_verdicts(chosen):
        problem = "broken: --follow shows a trace that grows, and only a complete trace is judged"
        raise click.BadParameter(problem, click.get_current_context(), param_hint=_FILTER)
    records, exchanges = _followed(records, chosen, follow=pair)
    if chosen is None:
        return map(exchanges.see, records)
    _check_possible(chosen)
    if chosen.names.isdisjoint(OF_REPLIES):
        return filter(chosen, map(exchanges.see, records))
    return (seen for _, seen in exchanges.settled(records) if chosen(seen))


def _wait() -> None:
    """Waits for further records, unless the reader of the output has gone."""
    if reader_gone():
        raise SystemExit(1)
    time.sleep(_FOLLOW_S)


def _colour(seen: Exchange) -> str | None:
    if seen.malformed or seen.failure:
        return "red"
    return "bright_black" if seen.kind in ("open", "close") else "cyan" if seen.direction else None


def _one_line(seen: Exchange, full: bool, show_tokens: bool) -> str:
    from segstore.traces import duration

    arrow = "<" if seen.direction else ">"
    latency = seen.latency_ns
    waited = "" if latency is None else f"  after {duration(latency)}"
    return f"{seen.time_ns / 1e9:12.6f}  #{seen.connection} {arrow} {_said(seen, full, show_tokens)}{waited}"


def _said(seen: Exchange, full: bool, show_tokens: bool) -> str:
    from segstore.wire.inspect import summary
    from segstore.wire.trace import unpack_data

    data = seen.record.data
    if seen.kind == "bytes":
        return f"{len(data)} bytes that are not a frame"
    if seen.kind == "frame":
        if seen.command is not None:
            return summary(seen.command, full=full)
        return f"{seen.type_name}, {len(data)} bytes, malformed: {seen.error}"
    if seen.call is not None:
        return _of_call(seen.call, show_tokens, full)
    facts = unpack_data(data)
    said = f"{len(data)} bytes" if facts is None else " ".join(f"{name}={json.dumps(facts[name])}" for name in facts)
    if seen.kind == "call":
        return f"{len(data)} bytes that are not a call"
    by = f"closed by the {'store' if seen.direction else 'client'}" if seen.kind == "close" else "opened"
    return f"{by} {said}".rstrip()


def _of_call(call: Call, show_tokens: bool, full: bool = False) -> str:
    from segstore.wire.trace import redacted_call

    return (call if show_tokens else redacted_call(call)).summary(full=full)


def _annotated(data: bytes, show_tokens: bool, full: bool = False) -> Iterator[str]:
    from segstore.wire.inspect import describe, lines

    return lines(describe(data, unknown="keep"), show_tokens=show_tokens, full=full)


@trace.command(short_help="Print statistics.")
@click.argument("source", metavar="FILE", type=INPUT_FILE)
@_filter_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object; times in ns.")
def stats(source: Path, chosen: Filter | None, as_json: bool) -> int:
    """Summarise a trace: commands, bytes, failures, response times, unanswered requests."""
    from segstore.traces import lines, statistics

    with reading(source) as (opened, records):
        counted = statistics(records, chosen, opened.damages)
    if chosen is not None and not counted.traffic:
        _check_possible(chosen)
    if as_json:
        values = {"form": opened.form, **opened.metadata._asdict(), **counted.as_object()}
        echo(json.dumps({**values, "damages": [damage._asdict() for damage in opened.damages]}))
        return _status(opened)
    metadata = opened.metadata
    recorder = f"recorded by {metadata.recorder}, " if metadata.recorder else ""
    echo(f"{opened.form} of {opened.size} bytes, {recorder}wire version {metadata.wire_version}")
    for name, value in metadata.values.items():
        echo(f"{name}: {value}")
    for line in lines(counted):
        echo(line)
    return _status(opened)


_exact_option = click.option(
    "--exact", is_flag=True, help="Compare ids and KeepAlives too, and connections in order; ignore no field."
)


@trace.command(short_help="Compare two traces.")
@click.argument("left", metavar="A", type=INPUT_FILE)
@click.argument("right", metavar="B", type=INPUT_FILE)
@ignore_option("Field that may differ; can be repeated, and then replaces the defaults.")
@_exact_option
@click.option("--show-tokens", is_flag=True, help="Print delegation tokens too.")
def diff(left: Path, right: Path, ignore: frozenset[str], exact: bool, show_tokens: bool) -> int:
    """Compare two traces, such as two runs of one program.

    Prints, for each connection and direction, the first difference by field; exits with 1 if the traces differ. Times
    are not compared. Ids of requests, writers, transactions and transient segments may differ, if each id always stands
    for the same id in the other trace. Connections are matched by their first request, controller calls by method and
    fields.
    """
    from segstore.wire.trace import Translation, differences

    with reading(left) as (one, mine), reading(right) as (other, its):
        differing = tuple(differences(mine, its, translation=None if exact else Translation(ignore)))
    for difference in differing:
        for number, line in enumerate(_difference(difference, show_tokens)):
            echo(line, fg=None if number else "yellow")
    return 1 if differing else _status(one, other)


def _difference(entry: Difference, show_tokens: bool) -> Iterator[str]:
    from segstore.wire.trace import CONTROLLER, Call

    way = "reply" if entry.direction else "request"
    is_call = entry.connection == CONTROLLER
    yield (f"controller call {entry.number}, {way}:" if is_call else f"{_connections(entry)}, {way} {entry.number}:")
    if entry.left is None or entry.right is None:
        there, count = ("B", entry.right_over) if entry.left is None else ("A", entry.left_over)
        if is_call:
            yield f"  only {there} has it" + (f", and {count} more of its method" if count else "")
    elif is_call and entry.left_over:
        yield f"  {entry.left_over} more of its method differ"
    if entry.more_text:
        yield f"  {entry.more_text}"
    for field in entry.fields:
        if field.secret and not show_tokens:
            yield f"  {field.field}: the tokens differ"
            continue
        places = list(field.places())
        yield from (f"  {place.text('in A', 'in B')}" for place in places[:_MOST_PLACES])
        if len(places) > _MOST_PLACES:
            yield f"  and {len(places) - _MOST_PLACES} more differences in {field.field}"
    for name, record in (("A", entry.left), ("B", entry.right)):
        if record is not None:
            call = Call.unpack(record.data) if is_call else None
            if call is not None:
                yield f"  {name}: {_of_call(call, show_tokens)}"
                continue
            yield f"  {name}: {len(record.data)} bytes of kind {record.kind.name}"
            yield from (f"  {line}" for line in _annotated(record.data, show_tokens) if not is_call)


def _connections(entry: Difference) -> str:
    """The connection of a difference, by its numbers in the traces, as `show` prints them."""
    sides = {name: record.connection for name, record in (("A", entry.left), ("B", entry.right)) if record is not None}
    if len(set(sides.values())) == 1:
        return f"connection #{next(iter(sides.values()))}"
    return "connection " + ", ".join(f"#{number} of {name}" for name, number in sides.items())


@trace.command(short_help="Write an HTML page.")
@click.argument("sources", metavar="FILE...", nargs=-1, required=True, type=_REREAD)
@click.option("-o", "--output", metavar="PAGE", required=True, type=_OUT, help="The HTML file to write.")
@click.option("--against", metavar="B", type=_REREAD, help="Compare the trace with another trace, as diff does.")
@ignore_option("With --against: field that may differ; can be repeated, and then replaces the defaults.")
@_exact_option
def view(sources: tuple[Path, ...], output: Path, against: Path | None, ignore: frozenset[str], exact: bool) -> int:
    """Write a page that shows traces in a browser: one self-contained HTML file.

    It has a timeline of connections, the records, their bytes and payloads, filters, and the state of segments, writers
    and transactions at any record. Payloads are shortened if the page would exceed a third of the traces' size.
    """
    from segstore.traces import is_trace
    from segstore.view import write_page
    from segstore.wire.trace import TraceError

    if against is not None and len(sources) > 1:
        raise click.UsageError("--against compares one trace with another", click.get_current_context())
    _check_output(output, *sources, *(() if against is None else (against,)))
    if is_trace(output):
        raise click.UsageError(f"{output} is a trace: -o names the HTML file to write", click.get_current_context())
    try:
        written = write_page(output, sources, against, ignore=ignore, exact=exact)
    except TraceError as error:
        raise click.ClickException(str(error)) from error
    for path, damage in written.damages:
        echo(f"{path}: {damage}", err=True)
    echo(f"{output}: {written.size:,} bytes")
    return 1 if written.damages else 0


# --- rewriting --------------------------------------------------------------------------------------------------


def _write(target: Path, opened: TraceFile, records: Iterable[Record], compress: bool) -> int:
    from segstore.traces import UnknownSuffix, write_trace

    try:
        return write_trace(target, records, lambda: opened.metadata, compress=compress)
    except UnknownSuffix as error:
        raise click.UsageError(str(error), click.get_current_context()) from error


@trace.command(name="filter", short_help="Extract matching records.")
@click.argument("source", metavar="IN", type=_REREAD)
@click.argument("target", metavar="OUT", type=_OUT)
@click.option("-f", "--filter", "chosen", metavar="EXPR", callback=_filter, required=True, help=_filter_help)
@click.option("--with-replies", is_flag=True, help="Keep the replies to the requests that match, too.")
@click.option("--only", is_flag=True, help="Write only matching records, not records that their replay needs.")
@_redact_option
@_compress_option
def filter_(
    source: Path, target: Path, chosen: Filter, with_replies: bool, only: bool, redact: bool, compress: bool
) -> int:
    """Write the records of a trace that match a filter, in the form that the suffix of OUT names.

    Unless --only is given, connections with a match also keep both Hellos, their start and their end, and appends keep
    the set-up of their writer and their block, so that the result can be replayed.
    """
    from segstore.traces import Companions, redacted

    _check_output(target, source)
    companions, places = Companions(), set[int]()
    with reading(source, report_damage=False) as (opened, records):
        matching = {place for place, _ in _matching(records, chosen, opened.damages)}
    if with_replies or not only:
        with reading(source, report_damage=False) as (opened, records):
            held, exchanges = _followed(records, chosen, follow=with_replies, damages=opened.damages)
            for place, seen in enumerate(map(exchanges.see, held)):
                companions.see(seen, chosen=place in matching)
                if with_replies and any(map(chosen, seen.answers)):
                    places.add(place)
    if not only:
        places |= companions.places
    with reading(source) as (opened, records):
        chosen_records = (record for place, record in enumerate(records) if place in matching or place in places)
        count = _write(target, opened, redacted(chosen_records) if redact else chosen_records, compress)
    echo(f"{count} records")
    return _status(opened)


@trace.command(short_help="Convert a trace between .wtrace, .jsonl and .pcapng.")
@click.argument("source", metavar="IN", type=INPUT_FILE)
@click.argument("target", metavar="OUT", type=_OUT)
@_redact_option
@_compress_option
def convert(source: Path, target: Path, redact: bool, compress: bool) -> int:
    """Convert a trace to the form that the suffix of OUT names: .wtrace for machines, .jsonl for people, .pcapng for
    Wireshark.

    IN may also be a packet capture (pcap, pcapng); its connections that start with a Hello are read. Between .wtrace
    and .jsonl nothing is lost, except for --redact; a .pcapng has no metadata.
    """
    from segstore.traces import redacted

    _check_output(target, source)
    with reading(source) as (opened, records):
        count = _write(target, opened, redacted(records) if redact else records, compress)
    echo(f"{count} records")
    return _status(opened)


@trace.command(short_help="Write indexes of captures.")
@click.argument("captures", metavar="FILE...", nargs=-1, required=True, type=click.Path())
def index(captures: tuple[str, ...]) -> int:
    """Write an index beside each capture: where its blocks are, so that readers on a store need not look for them.

    FILE may be the URL of a file on a store, such as s3://bucket/run.wtrace.
    """
    from segstore.pipeline.blocks import write_index
    from segstore.pipeline.storage import Storage
    from segstore.wire.trace import TraceError

    status = 0
    for capture in captures:
        if is_pipe(capture):
            raise click.UsageError(
                f"{capture} is a pipe: an index is written beside a file", click.get_current_context()
            )
        try:
            written, blocks = write_index(capture, Storage())
        except (OSError, ValueError, TraceError) as error:
            problem = error_text(error) if isinstance(error, OSError) else str(error)
            echo(problem if problem.startswith(capture) else f"{capture}: {problem}", err=True)
            status = 1
        else:
            echo(f"{written}: {blocks} blocks")
    return status
