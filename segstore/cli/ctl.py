"""`segstore ctl`: steers a running server through its HTTP API.

Most commands are one request each, and stand in `_TABLE`; commands that read files, write bytes or send several
requests are functions. `ctl api` sends any request.

Exit status: 0; 1 if the server refuses, or if a verification fails; 2 for wrong options. Requests go to the given URL
only, without proxies of the environment and without redirects.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO

import click

from segstore.cli.api import URL, Api, completed, pass_api, quoted, read_token
from segstore.cli.terminal import (
    INPUT_FILE,
    Finite,
    Listing,
    NewPath,
    echo,
    file_option,
    let_options_follow,
    scoped_name,
)

if TYPE_CHECKING:
    from segstore.server.faults import FaultSettings

_READ_BYTES: Final = 4 * 1024 * 1024
_PAGE: Final = 500


@click.group()
@click.option(
    "--url",
    metavar="URL",
    default=lambda: os.environ.get("SEGSTORE_URL", URL),
    show_default=URL,
    help="Address of the HTTP API; the environment variable SEGSTORE_URL gives it, too.",
)
@file_option("--token-file", "File with the token of the server (serve --http-token-file).")
@click.option("--json", "as_json", is_flag=True, help="Print the answers of the API as JSON.")
@click.pass_context
def ctl(context: click.Context, url: str, token_file: Path | None, as_json: bool) -> None:
    """Steer a running server, and show what it holds.

    The server, or a tap, is started with --http-port. The options may also follow the sub-command.
    """
    context.obj = Api(url, read_token(token_file), as_json=as_json)


# --- names in paths ---------------------------------------------------------------------------------------------------


def _scoped(text: str) -> str:
    """SCOPE/NAME as two parts of a path."""
    return "/".join(map(quoted, scoped_name(text)))


def _names(listed: str) -> Callable[[Api, str], list[str]]:
    """Returns the function that completes a name with those in a list of the API."""
    return lambda api, _: [entry["name"] for entry in api.ask("GET", listed)["rules" if listed == "faults" else listed]]


def _names_in(kind: str) -> Callable[[Api, str], list[str]]:
    """Returns the function that completes a scope, and for a kind of resource SCOPE/NAME."""

    def names(api: Api, incomplete: str) -> list[str]:
        scope, slash, _ = incomplete.partition("/")
        if not slash or not kind:
            return [f"{name}/" if kind else name for name in api.ask("GET", "scopes")["scopes"]]
        listed = api.ask("GET", f"{kind}s/{quoted(scope)}", limit=_PAGE)[f"{kind}s"]
        return [f"{scope}/{entry[kind]}" for entry in listed]

    return names


def _argument(part: str, listed: str) -> click.Argument:
    """Returns the argument for a part of a path. listed: the first part, a list that has the name."""
    required, name = part.startswith("{"), part.strip("{}[]")
    if name == "number":
        return click.Argument([name], type=int, required=required)
    if name == "transaction":
        return click.Argument([name], type=click.UUID, metavar="ID")
    kind = name if name in ("stream", "group", "table") else ""
    complete = None if name == "segment" else completed(_names(listed) if name == "name" else _names_in(kind))
    metavar = f"SCOPE/{kind.upper()}" if kind else name.upper() if required else f"[{name.upper()}]"
    return click.Argument(
        [name], type=_scoped if kind else quoted, required=required, metavar=metavar, shell_complete=complete
    )


# --- commands that are one request ------------------------------------------------------------------------------------

_TABLE: Final = """
faults | List, add, replace, remove and release fault rules, and show what they have done.
  list | GET faults | | rules: name matched fired held enabled | List the rules and their counts.
  remove | DELETE faults/[name] | | | Remove a rule, or all, and release what they hold.
  release | POST faults/{name}/release | | | Release what a rule holds now.
  decisions | GET decisions | rule after-number limit=100/1000
    | decisions: number rule action nth connection direction type segments event_number
    | List what the rules have done, oldest first.
  round-trip | PUT round-trip | ms | | Set the minimum delay of every reply.
toxics | List, add and remove toxics.
  list | GET toxics | | toxics: name connections toxic | List the toxics, and how many connections have each.
  remove | DELETE toxics/[name] | | | Remove a toxic, or all.
connections | List the connections of clients, and close them.
  list | GET connections | | connections: number store peer writers bytes_in bytes_out held_bytes
    | List the open connections.
  cut | DELETE connections/[number] | | | Close a connection, or all, at once, as a failing network does.
record | Start, stop, download and delete recordings of the traffic.
  start | POST recordings | name max-bytes | | Start a recording; its name is printed.
  list | GET recordings | | recordings: name running records size problem | List the recordings.
  stop | POST recordings/{name}/stop | |
    | Stop a recording; the exit status is 1 if it ended at its limit before.
  delete | DELETE recordings/{name} | | | Delete a recording.
stores | List the stores; stop and start one of several in one process.
  list | GET server | | stores: store address admin_address upstream serving | List the stores and their addresses.
  stop | POST stores/{number}/stop? | drain-s | | Stop a store; the others take its containers.
  start | POST stores/{number}/start | | | Restart a store on its port; it takes its share of the containers.
  expire-session | POST stores/{number}/expire-session | |
    | Expire a store's session with the coordination service.
  cut-session | POST stores/{number}/cut-session | | | Disconnect a store from the coordination service.
  heal-session | POST stores/{number}/heal-session | | | Reconnect a store to the coordination service.
snapshot | List, take, restore and delete snapshots of all data.
  list | GET snapshots | | snapshots: name segments size | List the snapshots.
  take | PUT snapshots/{name} | | | Take a snapshot, and replace one of this name.
  delete | DELETE snapshots/{name} | | | Delete a snapshot.
  restore | POST snapshots/{name}/restore | | | Restore a snapshot; cuts all connections, removes fault rules.
scopes | List and show scopes.
  list | GET scopes | limit=100/500 after | scopes: scope | List the names of scopes.
  show | GET scopes/{scope} | | | Show a scope.
streams | List and show streams, their segments and their last events.
  show | GET streams/{stream} | | | Show a stream with its policies and tags.
  segments | GET streams/{stream}/segments | limit=100/500 after open
    | segments: id epoch until_epoch low high status start_offset length store successors
    | List the segments of a stream, by epoch.
  tail | GET streams/{stream}/tail | limit=10/100 segment | events: segment offset size kind text
    | Show the last events of the segments of a stream.
transactions | List and show the transactions of a stream that have not ended.
  list | GET streams/{stream}/transactions | limit=20/100 after
    | transactions: id status age_ms lease_left_ms epoch segment_count bytes | List the transactions of a stream.
  show | GET streams/{stream}/transactions/{transaction} | | + segments: name length
    | Show a transaction and its segments.
groups | List and show reader groups.
  show | GET groups/{group} | | + readers: reader segments lag_bytes
    + segments: name reader status offset length lag_bytes | Show a reader group: its readers, positions and lag.
tables | List and show key-value tables and their entries.
  show | GET tables/{table} | | + segments: id name low high entries | Show a key-value table and its partitions.
  entries | GET tables/{table}/entries?as=readable | limit=100/500 after | entries: key value version
    | List the entries of a key-value table: keys and values as text, or in hex.
requests | GET requests | match limit=20/1000
    | requests: number connection type segments streams stage reply faults
    | List the latest requests that match a filter, newest first.
segments | GET segments | prefix limit=100/10000 after
    | segments: name store container start_offset length sealed | List segments whose names begin with PREFIX.
containers | GET containers | | containers: container store address open segments
    | List containers and their owners.
reset | POST reset | | | Remove all data and fault rules; cuts all connections.
wait | GET requests/wait | match count stage=applied timeout-s since |
    | Wait until requests that match a filter have reached a stage.
verify | GET requests/verify | match exactly at-least at-most stage=received since |
    | Verify the number of requests that match a filter.
"""
"""Groups with their help, and commands: name, request, parameters, what is shown, help.

`{name}` in a request is an argument, `[name]` an optional argument. Parameters, declared in `_PARAMS`, go into the
query of a GET or of a request with a `?`, else into the body. Shown are a list of the answer and its columns; with `+`,
lines for the other keys come before such lists; without any list, the answer is a line for each key.
"""


def _number(option: str, text: str, lowest: int = 0, **more: Any) -> click.Option:
    return click.Option([option], type=click.IntRange(lowest), help=text, **more)


_STAGES: Final = click.Choice(["received", "applied", "refused", "replied"])
_PARAMS: Final[dict[str, click.Parameter]] = {
    "after": click.Option(["--after"], metavar="NAME", help="Only entries after this one, as `next` names it."),
    "after-number": _number("--after", "Only entries with a greater number.", default=0),
    "at-least": _number("--at-least", "The lowest number."),
    "at-most": _number("--at-most", "The highest number."),
    "count": _number("--count", "Number of requests.", 1, default=1, show_default=True),
    "drain-s": click.Option(["--drain-s"], type=Finite(0, 10), default=0.0, help="Time to send replies; 0 cuts."),
    "exactly": _number("--exactly", "The number of requests."),
    "match": click.Argument(["match"], default="", metavar="[FILTER]"),
    "max-bytes": _number("--max-bytes", "Where it ends; 64 MiB by default.", 1),
    "ms": click.Argument(["round_trip_ms"], type=Finite(0), metavar="MS"),
    "name": click.Argument(["name"], default=""),
    "open": click.Option(["--open"], is_flag=True, help="Only segments that take writes."),
    "prefix": click.Argument(["prefix"], default="", metavar="[PREFIX]"),
    "rule": click.Option(["--rule"], metavar="NAME", help="Only decisions of this rule."),
    "segment": click.Option(["--segment"], type=int, help="The id of a segment."),
    "since": _number("--since", "Only requests with a greater number.", default=0),
    "timeout-s": click.Option(["--timeout-s"], type=Finite(0, 50), default=5.0, show_default=True, help="Deadline."),
}


def _parameter(text: str) -> click.Parameter:
    """Returns a parameter of the table; `limit=100/500` gives the default and the maximum."""
    name, _, default = text.partition("=")
    if name == "limit":
        first, _, most = default.partition("/")
        kind = click.IntRange(1, int(most))
        return click.Option(["--limit"], type=kind, default=int(first), show_default=True, help="Maximum number.")
    if name == "stage":
        return click.Option(["--stage"], type=_STAGES, default=default, show_default=True, help="Stage to reach.")
    return _PARAMS[name]


def _one_line(text: str) -> str:
    """Joins the lines of indented JSON."""
    return " ".join(line.strip() for line in text.splitlines())


def _events(answer: dict[str, Any]) -> dict[str, Any]:
    """The last events of a stream in one list."""
    events = ({**event, "segment": one["id"]} for one in answer["segments"] for event in one["events"])
    return {"events": [{**event, "text": _one_line(event["text"])} for event in events]}


def _entries(answer: dict[str, Any]) -> dict[str, Any]:
    """The entries of a table with their keys and values as text."""
    for entry in answer["entries"]:
        for part in ("key", "value"):
            entry[part] = _one_line(entry[part].get("text") or entry[part].get("hex") or "")
    return answer


_VIEWS: Final[dict[str, Callable[[dict[str, Any]], dict[str, Any]]]] = {
    "streams tail": _events,
    "tables entries": _entries,
    "snapshot restore": lambda answer: {"the snapshot is restored": f"{answer['connections']} connections were cut"},
    "reset": lambda answer: {"all data and fault rules are removed": f"{answer['connections']} connections were cut"},
}
"""Change answers that are not printed as JSON."""


def _add(words: str, params: list[click.Parameter], callback: Callable[..., Any], text: str | None) -> None:
    group, _, name = words.rpartition(" ")
    command = click.Command(name, params=params, callback=pass_api(callback), help=text)
    (ctl.commands[group] if group else ctl).add_command(command)  # type: ignore[attr-defined]  # it is a group


def _add_request(words: str, request: str, params: str, shown: str, text: str) -> None:
    method, path = request.split()
    parts = [part for part in path.partition("?")[0].split("/") if part[0] in "{["]

    def send(api: Api, **values: Any) -> None:
        target = path
        for part in parts:
            value = values.pop(part.strip("{}[]"))
            target = target.replace(f"/{part}", "" if value is None else f"/{value}")
        if method == "GET" or "?" in path:
            answer = api.ask(method, target.removesuffix("?"), **values)
        else:
            body = {name: value for name, value in values.items() if value is not None}
            answer = api.ask(method, target, body if params else None)
        view = _VIEWS.get(words)
        api.show(answer if view is None or api.as_json else view(answer), shown)

    arguments = [_argument(part, path.partition("/")[0]) for part in parts]
    _add(words, [*arguments, *map(_parameter, params.split())], send, text)


def _add_requests() -> None:
    group = ""
    for line in _TABLE.replace("\n    ", " ").strip().splitlines():
        words, *columns = (column.strip() for column in line.split(" |"))
        if len(columns) == 1:
            group = words
            ctl.add_command((click.Group if group == "transactions" else Listing)(group, help=columns[0]))
        else:
            _add_request(f"{group} {words}" if line.startswith(" ") else words, *columns)


_add_requests()


# --- lists of one scope or all ----------------------------------------------------------------------------------------


def _list(kind: str, columns: str) -> Callable[..., None]:
    """Returns the command that lists the objects of a kind in a scope or, without one, in all, up to the limit."""

    def listed(api: Api, scope: str | None, limit: int, after: str | None, **query: Any) -> None:
        if scope is not None:
            answer = api.ask("GET", f"{kind}/{scope}", limit=limit, after=after, **query)
            api.show(answer, f"{kind}: {columns}")
            return
        if after is not None:
            raise click.UsageError("--after goes with a SCOPE")
        rows = (
            {"scope": name, **row}
            for name in api.pages("scopes", "scopes")
            for row in api.pages(f"{kind}/{quoted(name)}", kind, **query)
        )
        first = list(islice(rows, limit + 1))
        if len(first) > limit:
            echo("segstore: there are more: --limit N lists N, and SCOPE one scope", err=True)
        api.show({kind: first[:limit]}, f"{kind}: scope {columns}")

    return listed


_INTERNAL: Final = click.Option(["--internal"], is_flag=True, help="Also internal streams, whose names begin with _.")
for _kind, _what, _columns, _more in (
    ("streams", "streams", "stream sealed epoch open_segments transactions tags", [_INTERNAL]),
    ("groups", "reader groups", "group kind", []),
    ("tables", "key-value tables", "table partitions primary_key_bytes secondary_key_bytes", []),
):
    _params = [_argument("[scope]", "scopes"), _parameter("limit=100/500"), _PARAMS["after"], *_more]
    _add(f"{_kind} list", _params, _list(_kind, _columns), f"List the {_what} of a scope, or of all.")


# --- other commands ---------------------------------------------------------------------------------------------------


def _command(words: str, *params: click.Parameter) -> Callable[[Callable[..., None]], Callable[..., None]]:
    def add(function: Callable[..., None]) -> Callable[..., None]:
        _add(words, list(params), function, function.__doc__)
        return function

    return add


def _file(text: str, *, required: bool = False) -> click.Option:
    return click.Option(["-f", "--file"], required=required, metavar="FILE|-", type=INPUT_FILE, help=text)


@_command(
    "faults add",
    click.Argument(["match"], required=False, metavar="[FILTER]"),
    click.Option(
        ["--do"], multiple=True, metavar="ACTION", help="What the rule does, as in a fault file: `close after`."
    ),
    click.Option(["--nth"], multiple=True, type=click.IntRange(1), help="Only at this match, from 1."),
    click.Option(["--name"], default="", help="The name of the rule; a number by default."),
    _file("Fault file (YAML or JSON)."),
)
def add_faults(
    api: Api, match: str | None, do: tuple[str, ...], nth: tuple[int, ...], name: str, file: Path | None
) -> None:
    """Add a rule, or the rules and toxics of a fault file, to those that there are."""
    if file is None:
        if not do:
            raise click.UsageError("a rule needs --do ACTION, and a fault file -f FILE")
        rule = {"match": match or "", "do": [_value(action) for action in do], "nth": nth, "name": name}
        api.show(api.ask("POST", "faults", rule))
        return
    if match is not None or do or nth or name:
        raise click.UsageError("a rule is either in the file or on the command line")
    settings = _read_faults(file)
    for setting in ("seed", "round_trip_ms"):
        if setting in settings.model_fields_set:
            raise click.ClickException(f"{file}: {setting} replaces that of the server; use faults replace")
    for path, added in (("faults", settings.rules), ("toxics", settings.toxics)):
        for one in added:
            api.show(api.ask("POST", path, one.model_dump(mode="json")))


@_command("faults replace", _file("Fault file (YAML or JSON).", required=True))
def replace_faults(api: Api, file: Path) -> None:
    """Replace all rules and toxics, the seed and the round-trip time by a fault file."""
    answer = api.ask("PUT", "faults", _read_faults(file).model_dump(mode="json"))
    api.show(answer, "rules: name matched fired held enabled")


def _read_faults(file: Path) -> FaultSettings:
    from segstore.server.faults import FaultFileError, read_faults

    try:
        return read_faults(file)
    except FaultFileError as error:
        raise click.ClickException(str(error)) from error


def _value(text: str) -> Any:
    """Returns JSON or the part of YAML that JSON can express; `close after` is a text."""
    from segstore.server.faults import FaultFileError, parse_document

    try:
        return parse_document(text, "the value").given
    except FaultFileError as error:
        raise click.UsageError(str(error)) from error


@_command("faults unmatched")
def unmatched(api: Api) -> None:
    """Show the rules that never matched or never fired; the exit status is 1 if there are any."""
    answer = api.ask("GET", "unmatched")
    api.show_texts(answer, "unmatched", str)
    if answer["unmatched"]:
        raise SystemExit(1)


@_command(
    "toxics add",
    click.Argument(["kind"], metavar="TYPE"),
    click.Argument(["fields"], nargs=-1, metavar="[KEY=VALUE]..."),
)
def add_toxic(api: Api, kind: str, fields: tuple[str, ...]) -> None:
    """Add a toxic, such as `latency latency=100 jitter=50`."""
    toxic: dict[str, Any] = {"type": kind}
    for field in fields:
        key, equals, value = field.partition("=")
        if not equals:
            raise click.UsageError(f"{field!r} is not KEY=VALUE")
        toxic[key] = _value(value)
    api.show(api.ask("POST", "toxics", toxic))


@_command(
    "record download",
    _argument("{name}", "recordings"),
    click.Argument(["file"], type=NewPath(dir_okay=False, path_type=Path)),
)
def download_recording(api: Api, name: str, file: Path) -> None:
    """Write what a recording has so far to a new FILE, .wtrace, .jsonl or .pcapng, or to standard output (-)."""
    from segstore.traces import STANDARD_OUTPUT, UnknownSuffix, capture_for, finish, replacing

    path = f"recordings/{name}/trace"
    if file == STANDARD_OUTPUT:
        api.download(path, sys.stdout.buffer, form="jsonl")
        return
    try:
        capture = capture_for(file)
        with replacing(capture) as part:
            api.download(path, part)
        finish(capture, file)
    except UnknownSuffix as error:
        raise click.UsageError(str(error)) from error


@_command("read", _argument("{segment}", "segments"))
def read(api: Api, segment: str) -> None:
    """Write the bytes of a segment to standard output, from its start offset."""
    about = api.ask("GET", f"segments/{segment}")
    for at in range(about["start_offset"], about["length"], _READ_BYTES):
        limit = min(about["length"] - at, _READ_BYTES)
        api.download(f"bytes/{segment}", sys.stdout.buffer, limit=limit, **{"from": at})


@_command("keep", click.Option(["--end"], is_flag=True, help="Stop keeping requests, and discard those kept."))
def keep(api: Api, end: bool) -> None:
    """Keep requests on a tap, or again on a server; a server with an HTTP port does so from its start."""
    api.show(api.ask("DELETE" if end else "POST", "requests/keep"))


@_command("problems", _PARAMS["after-number"], _parameter("limit=20/100"))
def problems(api: Api, **query: Any) -> None:
    """List the requests that the trace of a replay does not answer, oldest first."""
    api.show_texts(api.ask("GET", "problems", **query), "problems", lambda each: f"{each['number']}: {each['detail']}")


@_command(
    "api",
    click.Argument(["method"]),
    click.Argument(["path"]),
    click.Option(
        ["-f", "--file"], type=click.File(encoding="utf-8-sig"), metavar="FILE|-", help="JSON or YAML to send."
    ),
)
def request(api: Api, method: str, path: str, file: TextIO | None) -> None:
    """Send any request of the HTTP API, such as `GET requests?limit=1`, and print the answer."""
    try:
        body = None if file is None else _value(file.read())
    except UnicodeDecodeError as error:
        raise click.ClickException(f"the body is not UTF-8 at byte {error.start}") from error
    api.call(method.upper(), path.removeprefix("/").removeprefix("v1/"), body)


let_options_follow(ctl, Api.changed)
