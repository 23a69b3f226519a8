"""Writes the pages of docs/ that are generated: the references of commands, of wire versions, and of settings.

    python tools/make_docs.py [--check]

With `--check` nothing is written, and the exit status is 1 if a page is out of date.
"""

from __future__ import annotations

import enum
import inspect
import struct
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from segstore.cli.settings import groups
from segstore.wire import COMMANDS, MAX_FRAME_BYTES, OLDEST_COMPATIBLE_VERSION, WIRE_VERSION, Command
from segstore.wire.codec import COMMANDS_SINCE, COMMANDS_UNTIL, FIELDS_SINCE, RELEASES, longest_frame_in
from segstore.wire.commands import admin, append, attribute, errors, segment, session, table
from segstore.wire.history import OPERATIONS, RULES
from segstore.wire.schema import FieldType, Nested, Rows, types

FAMILIES: tuple[ModuleType, ...] = (session, append, segment, attribute, table, errors, admin)
DOCS = Path(__file__).resolve().parent.parent / "docs"

INTEGERS = {"b": "int8", "i": "int32", "q": "int64"}

Row = tuple[str, str, str]


def fixed(code: str) -> str:
    return {"?": "bool", "16s": "UUID"}.get(code) or INTEGERS[code]


def rows(nodes: tuple[FieldType, ...], prefix: str = "") -> Iterator[Row]:
    """Field, type and remark of each node, in wire order; what is inside another has a path."""
    for node in nodes:
        yield from row(node, prefix + node.name)


def row(node: FieldType, field: str) -> Iterator[Row]:
    match node:
        case types.Fixed(format=code):
            yield field, fixed(code), ""
        case types.EnumCode(members=members, unknown=unknown):
            known = ", ".join(f"{int(member)} {member.name}" for member in members)
            yield field, "int32", f"{known}; any other number is {unknown.name}"
        case types.Marker(value=value):
            yield field, "int32", f"always {value}; not an attribute"
        case types.Text():
            yield field, "text", ""
        case types.Blob():
            yield field, "data", "; ".join(data_remarks(node))
        case types.Rest():
            yield field, "rest", "all remaining bytes"
        case types.Zeros():
            yield field, "rest", "that many zero bytes; their content is ignored when read"
        case types.SizedData():
            yield from sized(node, field)
        case types.Tail():
            for name, kind, remark in row(node.inner, field):
                few = "ignored" if node.needs > 1 else "refused"
                tail = f"may be missing: {default(node.default)}; an incomplete one is {few}"
                yield name, kind, f"{remark}; {tail}" if remark else tail
        case Nested():
            yield from rows(node.parts, field + ".")
        case types.Counted():
            negative = "; negative: none" if node.negative_is_empty else ""
            yield f"{field}.count", "int32", f"number of elements, of {node.smallest} bytes or more{negative}"
            yield from row(node.element, field + "[]")
        case Rows():
            names = " and ".join(f"`{column.name}`" for column in node.columns)
            yield f"{field}.count", "int32", f"number of rows; each is one element of {names}"
            prefix = field[: len(field) - len(node.name)]
            for column in node.columns:
                yield from row(column, f"{prefix}{column.name}[]")
        case _:
            raise TypeError(f"{field}: no text for {type(node).__name__}")


def data_remarks(node: types.Blob) -> Iterator[str]:
    if node.negative_is_empty:
        yield "a negative length means no data"
    if node.optional:
        yield "may be missing: no data"
    if not node.written:
        yield "read, but always written with length 0"


def sized(node: types.SizedData, field: str) -> Iterator[Row]:
    yield f"{field}.total", "int32", "bytes of everything that follows; written in full even if no data follows"
    yield field, "data", ""
    if node.trailer is not None:
        name = field[: len(field) - len(node.name)] + node.trailer.name
        yield name, fixed(node.trailer.format), f"left out if there is no data, and then {default(node.missing)}"


def default(value: Any) -> str:
    if isinstance(value, enum.Enum):
        return value.name
    if value == -(1 << 63):
        return "-2^63"
    return '""' if value == "" else str(value)


def direction(cls: type[Command]) -> str:
    words = [word for word, holds in (("request", cls.is_request), ("reply", cls.is_reply)) if holds]
    words += ["failure"] if cls.is_failure else []
    return ", ".join(words) or "part of an append"


def layout(cls: type[Command]) -> Iterator[str]:
    """The table of a body. Offsets are given as long as they are the same in every frame."""
    nodes = cls.parts
    if not nodes:
        yield "The body is empty."
        return
    yield "| Byte | Field | Type | |"
    yield "|---|---|---|---|"
    at: int | None = 8
    for field, kind, remark in rows(nodes):
        yield f"| {'' if at is None else at} | `{field}` | {kind} | {remark} |"
        width = WIDTHS.get(kind)
        at = None if at is None or width is None or "missing" in remark else at + width
    order = [name for part in cls.parts for name in part.attributes]
    if order != list(cls.__struct_fields__):
        yield ""
        yield f"The order of the class's attributes differs: {', '.join(f'`{n}`' for n in cls.__struct_fields__)}."


WIDTHS = {name: struct.calcsize(">" + code) for code, name in INTEGERS.items()} | {"bool": 1, "UUID": 16}


def commands_of(family: ModuleType) -> list[type[Command]]:
    return [cls for cls in COMMANDS.values() if cls.__module__ == family.__name__]


def first_sentence(text: str | None) -> str:
    return (inspect.cleandoc(text or "").split("\n\n")[0]).replace("\n", " ")


def protocol() -> str:
    """docs/reference/protocol.md."""
    lines = [
        "# Protocol commands",
        "",
        "Generated from the schema by `make docs`; the schema is `segstore/wire/commands`.",
        "",
        f"Wire version {WIRE_VERSION}, oldest compatible {OLDEST_COMPATIBLE_VERSION}. A frame is a header and a body:",
        "int32 type code, int32 length of the body, the body. All numbers are big-endian and signed, except the",
        f"length of a text. A frame has at most {MAX_FRAME_BYTES:,} bytes, header included. Bytes behind the last",
        "field are ignored. [Older wire versions](wire-versions.md) lists what these leave out.",
        "",
        "| Type | On the wire |",
        "|---|---|",
        "| int8, int32, int64 | 1, 4, 8 bytes |",
        "| bool | 1 byte; non-zero is true, and true is written as 1 |",
        "| UUID | 16 bytes: two int64, the most significant first |",
        "| text | uint16 length in bytes, then Java's modified UTF-8; null is written as empty text |",
        "| data | int32 length, then that many bytes; a negative length is refused |",
        "| rest | all bytes up to the end of the frame |",
        "",
        "The column *Byte* is the offset from the start of the frame, if it is the same in every frame.",
        "",
        "| Code | Type | Class | Direction |",
        "|---|---|---|---|",
    ]
    for code in sorted(COMMANDS):
        cls = COMMANDS[code]
        anchor = cls.type_name.lower()
        lines.append(f"| {code} | [{cls.type_name}](#{anchor}) | `{cls.__name__}` | {direction(cls)} |")
    for family in FAMILIES:
        lines += ["", f"## {family.__name__.rpartition('.')[2].capitalize()}", "", first_sentence(family.__doc__)]
        for cls in commands_of(family):
            lines += ["", f"### {cls.type_name}", "", f"Code {cls.code}, `{cls.__name__}`, {direction(cls)}."]
            lines += [inspect.cleandoc(cls.__doc__)] if cls.__doc__ else []
            lines += ["", *layout(cls)]
    return "\n".join(lines) + "\n"


def changes(version: int) -> Iterator[str]:
    """What a version knew that the one before did not."""
    if version > OLDEST_COMPATIBLE_VERSION:
        yield from (f"{cls.type_name} ({cls.code})" for cls, since in COMMANDS_SINCE.items() if since == version)
    fields: dict[str, list[str]] = {}
    for (owner, name), since in FIELDS_SINCE.items():
        with_its_command = name == "continuation_token"
        if since == version and not with_its_command:
            fields.setdefault(name, []).append(owner.type_name if issubclass(owner, Command) else owner.__name__)
    yield from (f"`{name}` of {', '.join(owners)}" for name, owners in fields.items())
    yield from (f"{cls.type_name} ({cls.code}) removed" for cls, last in COMMANDS_UNTIL.items() if last == version - 1)
    if longest_frame_in(version) != longest_frame_in(max(version - 1, OLDEST_COMPATIBLE_VERSION)):
        yield f"frames of up to {longest_frame_in(version):,} bytes, {longest_frame_in(version - 1):,} before"


def wire_versions() -> str:
    """docs/reference/wire-versions.md."""
    lines = [
        "# Older wire versions",
        "",
        "Generated from `segstore/wire/codec/versions.py` by `make docs`. Source: the history of the reference.",
        "",
        f"`segstore serve --wire-version N` ({OLDEST_COMPATIBLE_VERSION} to {WIRE_VERSION}) and",
        "`MockSegmentStore(wire_version=N)` answer Hello with that version. They read and write frames as the newest",
        "release that announced it: newer fields are left out of replies and ignored in requests, and an unknown",
        "command closes the connection. So does a failure for which that version had no reply, such as an illegal",
        f"argument before version {COMMANDS_SINCE[errors.ErrorMessage]}.",
        "",
        "The Rust and Python clients speak version 15. With an older store they retry silently, without a limit.",
        "",
        "| Version | Pravega | Changes |",
        "|---|---|---|",
    ]
    for version in RELEASES:
        came = "; ".join(changes(version)) or "only what is listed below"
        lines.append(f"| {version} | {RELEASES[version]} | {came} |")
    lines += [
        "",
        "Fields are only ever added at the end of a command. Other differences:",
        "",
        "- Before 8, requests had no id of their own where the table lists `request_id`. Replies named a read by its",
        "  offset and an append by its event number, and so does a store of that version. APPEND_BLOCK_END had eight",
        "  unused bytes in place of its id.",
        "- Before 16, INVALID_EVENT_NUMBER had one number, the id of the request; before 8 it was the event number.",
        "- In 10 and 11, table iterations had a `prefix_filter`; it is now written empty.",
        "- Up to 8, the reference mistook bytes behind the last known field for another frame, and closed the",
        "  connection once it had executed the command (pravega#4211). Before 8 it refused CONDITIONAL_APPEND with",
        "  such bytes. Here they are ignored, as intended, unless `MockSegmentStore(strict_wire_version=True)` is set.",
        "- Versions 7, 12 and 13 were never released; here they are the last commit before the next version.",
        "",
        "Only the frames are old: commands have their current effect in every version. For instance, up to 8 the",
        "reference closed the connection when a token was refused.",
    ]
    return "\n".join(lines) + "\n"


def settings() -> str:
    """docs/reference/settings.md."""
    lines = [
        "# Settings of `segstore serve`",
        "",
        "Generated from the settings' models by `make docs`.",
        "",
        "Each setting can be given in three ways, which take precedence in this order:",
        "",
        "1. as an option: `--admin-port 9000`",
        "2. as an environment variable, `SEGSTORE_` and the name in capitals: `SEGSTORE_ADMIN_PORT=9000`",
        "3. as a key of the settings file, which `--config FILE` or `SEGSTORE_CONFIG` names: `admin_port = 9000`",
        "",
        "```toml",
        "# segstore.toml",
        "port = 12345",
        "admin_port = 9000",
        'data = "data"            # relative paths start at the folder of this file',
        "own = [0, 2]",
        "rebalance = false        # as an option: --no-rebalance; as a variable: SEGSTORE_REBALANCE=false",
        "```",
        "",
        "A value that is not valid, or an unknown key of the file, ends `segstore serve` with status 2 and a sentence",
        "that names the option, the variable, or the file and the key. An empty variable is not set. An unknown",
        "variable is ignored, because others may use the prefix, but a name that resembles a setting causes a warning.",
        "Kubernetes sets `SEGSTORE_PORT` to a URL in pods beside a service named `segstore`; rename the service, or",
        "set `enableServiceLinks: false`.",
    ]
    for group, members in groups().items():
        lines += ["", f"## {group}", "", "| Setting | Option | Default | |", "|---|---|---|---|"]
        for member in members:
            usage = member.usage.replace("|", "\\|")
            default = str(member.default).lower() if member.is_flag else member.shown_default
            shown = f"`{default}`" if default else ""
            lines.append(f"| `{member.name}` | `{usage}` | {shown} | {member.description} |")
    return "\n".join(lines) + "\n"


def rules() -> str:
    """docs/reference/rules.md."""
    lines = [
        "# Rules of histories",
        "",
        "Generated from the rules' declarations by `make docs`. `segstore check`, the explorer and Spark judge by",
        "them; [Judge what happened](../how-to/judge-a-history.md) shows how. A rule is broken only if the records",
        "show it; what they do not decide is counted as unknown. Histories are [JSON lines](histories.md) of your",
        "own tests. Names in brackets come from Jepsen's Kafka workload and of Elle. Sources are files of the",
        "reference.",
    ]
    for family in dict.fromkeys(rule.family for rule in RULES.values()):
        lines += [
            "",
            f"## {family}",
            "",
            "| Rule | In a correct history | Broken, for example | Judged in | Source |",
            "|---|---|---|---|---|",
        ]
        for rule in RULES.values():
            if rule.family == family:
                name = f"`{rule.id}`" + (f" ({rule.alias})" if rule.alias not in ("", rule.id) else "")
                lines.append(f"| {name} | {rule.text} | {rule.example} | {rule.judged_in} | {rule.source} |")
    return "\n".join(lines) + "\n"


def histories() -> str:
    """docs/reference/histories.md."""
    lines = [
        "# Histories as JSON lines",
        "",
        "Generated from the operations' declarations by `make docs`. Tests in any language can write what they did,",
        "and `segstore check` judges it by the [rules](rules.md). The form follows Jepsen's histories: an operation",
        "is a line when it begins and a line when it ends.",
        "",
        "```json",
        '{"type": "invoke", "process": 0, "time": 17, "f": "send", "value": {"segment": "s/0", "event": "a"}}',
        '{"type": "ok", "process": 0, "time": 21, "f": "send", "value": {"offset": 0}}',
        "```",
        "",
        "| Field | |",
        "|---|---|",
        "| `type` | `invoke`; then `ok`, `fail` (certainly without effect) or `info` (undecided: now, later, never) |",
        "| `process` | A number or a name. A process has one operation at a time |",
        "| `f` | The operation |",
        "| `value` | Its fields. The value at the end is added to the value at the beginning |",
        "| `time` | In ns; optional. The order of the lines decides |",
        "",
        "An operation that never ends counts as `info`. Other fields of a line are ignored. An incomplete last line is",
        "reported, and the lines before it are judged.",
        "",
        "## Operations",
        "",
        "| Operation | Fields | |",
        "|---|---|---|",
    ]
    for name, operation in OPERATIONS.items():
        fields = [f"`{field.name}`" + "?" * (not field.required) for field in msgspec.structs.fields(operation)]
        lines.append(f"| `{name}` | {', '.join(fields)} | {' '.join((operation.__doc__ or '').split())} |")
    lines += [
        "",
        "Segments, tables, keys and groups are names; events and values are any JSON. An offset is any number that",
        "grows with the place in the segment. Events of a segment should differ: equal events are counted, but their",
        "order is not judged. A poll reads on from the reader's last poll of the segment, unless it says `moved`, or",
        "the reader has taken or given up the segment since.",
    ]
    return "\n".join(lines) + "\n"


PAGES: dict[str, Callable[[], str]] = {
    "reference/protocol.md": protocol,
    "reference/wire-versions.md": wire_versions,
    "reference/settings.md": settings,
    "reference/rules.md": rules,
    "reference/histories.md": histories,
}


def main(arguments: list[str]) -> int:
    check = arguments == ["--check"]
    if arguments and not check:
        print(f"make_docs: there is no option {' '.join(arguments)!r}, only --check", file=sys.stderr)
        return 2
    stale = 0
    for name, make in PAGES.items():
        path, text = DOCS / name, make()
        if path.exists() and path.read_text("utf-8") == text:
            continue
        stale += 1
        if check:
            print(f"{path}: not up to date; run `make docs`", file=sys.stderr)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")
            print(f"wrote {path}")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
