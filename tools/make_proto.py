"""Compile the controller's API: from controller.proto to controller.binpb and messages.pyi beside it.

`controller.binpb` is protoc's FileDescriptorSet, from which the package makes its message classes when it is imported.
Descriptors, not Python from protoc: such Python runs only with a protobuf at least as new as the protoc that wrote it,
and differs from release to release, while a descriptor is read by every protobuf. `messages.pyi` tells type checkers
what those classes are; it is written from the descriptor alone, so that it too is the same whatever protoc made it.
"""

from __future__ import annotations

import keyword
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
)

PROTO = Path(__file__).parent.parent / "wire" / "controller_api"
SOURCE = "controller.proto"

HEADER = '''\
"""Types of the classes in messages.py. Built by `make proto` from controller.proto, not edited."""
# ruff: noqa: A002, E501, N802, N803, N815 (names and lengths are protobuf's)

from collections.abc import Iterable, Mapping, MutableMapping, MutableSequence
from typing import Final

from google.protobuf.message import Message

'''

SCALARS = {
    FieldDescriptorProto.TYPE_DOUBLE: "float",
    FieldDescriptorProto.TYPE_INT64: "int",
    FieldDescriptorProto.TYPE_INT32: "int",
    FieldDescriptorProto.TYPE_BOOL: "bool",
    FieldDescriptorProto.TYPE_STRING: "str",
    FieldDescriptorProto.TYPE_ENUM: "int",
}


def compile_descriptors(folder: Path = PROTO) -> FileDescriptorSet:
    """Run protoc (of grpcio-tools) over the file; it carries no comments, paths or versions into what it gives."""
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch, "out.binpb")
        subprocess.run(
            [sys.executable, "-m", "grpc_tools.protoc", f"-I{folder}", f"--descriptor_set_out={out}", SOURCE],
            check=True,
        )
        return FileDescriptorSet.FromString(out.read_bytes())


def stub(file: FileDescriptorProto) -> str:
    """Give the text of messages.pyi."""
    names = [message.name for message in file.message_type]
    lines = [f"__all__ = [{', '.join(repr(name) for name in sorted(names))}]".replace("'", '"'), ""]
    for message in file.message_type:
        lines += [*_message(message, f".{file.package}."), ""]
    return HEADER + "\n".join(lines).rstrip() + "\n"


def _message(message: DescriptorProto, package: str, indent: str = "") -> Iterator[str]:
    yield f"{indent}class {message.name}(Message):"
    inner = indent + "    "
    maps = {each.name: each for each in message.nested_type if each.options.map_entry}
    empty = True
    for enum in message.enum_type:
        yield from _enum(enum, inner)
        empty = False
    for nested in message.nested_type:
        if nested.name not in maps:
            yield from _message(nested, package, inner)
            empty = False
    takes: list[str] = []
    for field in message.field:
        entry = maps.get(field.type_name.rpartition(".")[2])
        held, taken = _types(field, entry, package)
        # A field called `from` can be neither an attribute nor a keyword in Python's grammar: getattr and ** reach it.
        if not keyword.iskeyword(field.name):
            settable = field.type != FieldDescriptorProto.TYPE_MESSAGE and field.label != field.LABEL_REPEATED
            if settable:
                yield f"{inner}{field.name}: {held}"
            else:
                yield f"{inner}@property"
                yield f"{inner}def {field.name}(self) -> {held}: ..."
            takes.append(f"{field.name}: {taken} | None = ...")
        empty = False
    if any(keyword.iskeyword(field.name) for field in message.field):
        takes.append("**more: object")
    arguments = ", ".join(["self", *(["*"] if takes and not takes[0].startswith("**") else []), *takes])
    if takes:
        yield f"{inner}def __init__({arguments}) -> None: ..."
    elif empty:
        yield f"{inner}def __init__(self) -> None: ..."


def _enum(enum: EnumDescriptorProto, indent: str) -> Iterator[str]:
    yield f"{indent}class {enum.name}:"
    yield f"{indent}    @staticmethod"
    yield f"{indent}    def Name(number: int) -> str: ..."
    yield f"{indent}    @staticmethod"
    yield f"{indent}    def Value(name: str) -> int: ..."
    for value in enum.value:
        yield f"{indent}{value.name}: Final = {value.number}"


def _types(field: FieldDescriptorProto, entry: DescriptorProto | None, package: str) -> tuple[str, str]:
    """Give what a field holds and what its constructor's argument may be."""
    if entry is not None:
        key, value = (_single(each, package) for each in entry.field)
        return f"MutableMapping[{key}, {value}]", f"Mapping[{key}, {value}]"
    single = _single(field, package)
    if field.label == field.LABEL_REPEATED:
        return f"MutableSequence[{single}]", f"Iterable[{single}]"
    return single, single


def _single(field: FieldDescriptorProto, package: str) -> str:
    if field.type == FieldDescriptorProto.TYPE_MESSAGE:
        return field.type_name.removeprefix(package)
    return SCALARS[field.type]


def main() -> None:
    """Write both files."""
    descriptors = compile_descriptors()
    (PROTO / "controller.binpb").write_bytes(descriptors.SerializeToString(deterministic=True))
    (PROTO / "messages.pyi").write_text(stub(descriptors.file[0]), encoding="utf-8")


if __name__ == "__main__":
    main()
