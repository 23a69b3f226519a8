"""Writes the synchronous classes of `segstore.client.sync` from those of the asyncio client.

    python tools/make_sync.py [--check]

The classes are those that `Client` leads to by what its methods return, and `MADE_BY_USERS`. Each method keeps its
name (but for `aclose`, which becomes `close`), its parameters and its docstring; `async` and `await` go. Refused: a
method whose types have no synchronous form, unless `LEFT_OUT` names it. With `--check` nothing is written, and the exit
status is 1 if a module is out of date.
"""

from __future__ import annotations

import ast
import builtins
import copy
import inspect
import re
import subprocess
import sys
import textwrap
from collections import defaultdict
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, Final, NamedTuple, TypeVar

from segstore.client import Client, Deserialized, StateSynchronizer

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "client" / "sync"
PACKAGE = "segstore.client"
HAND_MADE: Final = "segstore.client.sync.proxies"

MADE_BY_USERS: Final = (StateSynchronizer, Deserialized)
"""Classes of which users create objects, from another object of the client: the constructor's first argument."""
LEFT_OUT: Final = {
    "Client.pool": "connections belong to the loop",
    "Client.locations": "for the pool's own users",
    "Client.segment_requests": "requests are made by functions that run in the loop",
    "Client.segment_writer": "its appends call functions in the loop",
    "Client.segment_reader": "a level that `SegmentRequests` belongs to",
    "EventWriter.large_events": "an object of the loop; nothing that scripts need",
    "TransactionWriter.forget": "called by transactions",
    "Transaction.leave": "called by their writer",
    "Transaction.writer": "the program has it",
    "RevisionedStream.attempts": "for synchronizers",
}
RENAMED: Final = {"aclose": "close", "__aenter__": "__enter__", "__aexit__": "__exit__", "__aiter__": "__iter__"}
WORDS: Final = (
    (r"`async (with|for)", r"`\1"),
    (r"\basync (with|for)\b", r"\1"),
    (r"\bawait ", ""),
    (r"`aclose`", "`close`"),
    (r"\ban? asyncio client\b", "a client"),
)


class Unfit(Exception):
    """A class or method without a synchronous form; the text says which and why."""


def spelled(given: ast.arguments, module: ModuleType) -> ast.arguments:
    """Parameters whose defaults are values, in place of a module's constants."""
    arguments = copy.deepcopy(given)

    def value(default: ast.expr) -> ast.expr:
        found = eval(ast.unparse(default), vars(module))
        return ast.Constant(int(found)) if type(default) in (ast.Name, ast.Attribute) else default

    arguments.defaults = [value(each) for each in arguments.defaults]
    arguments.kw_defaults = [None if each is None else value(each) for each in arguments.kw_defaults]
    return arguments


def names_in(node: ast.AST | None) -> set[str]:
    """The names in a node, without attributes."""
    return set() if node is None else {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}


class Member(NamedTuple):
    """A method or property, and the module whose names its annotations use."""

    name: str
    node: ast.FunctionDef | ast.AsyncFunctionDef
    is_property: bool
    yields: bool
    module: ModuleType


def tree_of(thing: Any) -> ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef:
    node = ast.parse(textwrap.dedent(inspect.getsource(thing))).body[0]
    assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    return node


def owners(cls: type) -> list[type]:
    return [each for each in cls.__mro__ if each.__module__.startswith(PACKAGE)]


def is_shown(name: str) -> bool:
    return name in RENAMED or name == "__anext__" or not name.startswith("_")


def members(cls: type) -> dict[str, Member]:
    """The public methods and properties of a class, in the order of their definition, inherited ones last."""
    found: dict[str, Member] = {}
    for owner in owners(cls):
        module = sys.modules[owner.__module__]
        for name, value in vars(owner).items():
            if name in found or not is_shown(name) or f"{cls.__name__}.{name}" in LEFT_OUT:
                continue
            function = value.fget if isinstance(value, property) else value
            if not isinstance(function, FunctionType):
                if isinstance(value, classmethod | staticmethod):
                    raise Unfit(f"{cls.__name__}.{name} is not a method of an object")
                continue  # a constant
            node = tree_of(function)
            assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            found[name] = Member(name, node, isinstance(value, property), inspect.isasyncgenfunction(function), module)
    return found


class Attribute(NamedTuple):
    """A public attribute, its type, whether it never changes, and the module whose names its type uses."""

    name: str
    kind: str
    is_final: bool
    module: ModuleType


def attributes(cls: type) -> Iterator[Attribute]:
    """The public attributes that a class sets in `__init__`."""
    for owner in reversed(owners(cls)):
        if "__init__" not in vars(owner):
            continue
        node = tree_of(vars(owner)["__init__"])
        assert isinstance(node, ast.FunctionDef)
        types = {each.arg: each.annotation for each in (*node.args.args, *node.args.kwonlyargs)}
        for inner in ast.walk(node):
            target = inner.targets[0] if isinstance(inner, ast.Assign) else getattr(inner, "target", None)
            if not (isinstance(target, ast.Attribute) and ast.unparse(target.value) == "self"):
                continue
            name = target.attr
            if name.startswith("_") or f"{cls.__name__}.{name}" in LEFT_OUT:
                continue
            assert isinstance(inner, ast.Assign | ast.AnnAssign)
            final = isinstance(inner, ast.AnnAssign) and ast.unparse(inner.annotation).startswith("Final")
            yield Attribute(name, type_of(cls, inner, types), final, sys.modules[owner.__module__])


def type_of(cls: type, node: ast.Assign | ast.AnnAssign, parameters: dict[str, ast.expr | None]) -> str:
    """The type of an attribute: its annotation, that of the parameter that it is set to, or its constant's."""
    annotation = node.annotation if isinstance(node, ast.AnnAssign) else None
    if isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value) == "Final":
        return ast.unparse(annotation.slice)
    if annotation is not None and ast.unparse(annotation) != "Final":
        return ast.unparse(annotation)
    value = node.value
    either = isinstance(value, ast.BoolOp)
    first = value.values[0] if isinstance(value, ast.BoolOp) else value
    if isinstance(first, ast.Name) and (given := parameters.get(first.id)) is not None:
        return ast.unparse(given).removesuffix(" | None") if either else ast.unparse(given)
    if isinstance(value, ast.Constant):
        return type(value.value).__name__
    raise Unfit(f"{cls.__name__}: the type of {ast.unparse(node)} is not known; annotate it with Final[…]")


class Imports:
    """The imports of a module that is written, by the module that they come from."""

    def __init__(self) -> None:
        self.by_module: dict[str, set[str]] = defaultdict(set)
        self.type_variables: dict[str, str] = {}

    def add(self, name: str, module: ModuleType) -> None:
        """Imports a name that a module's annotations use."""
        if hasattr(builtins, name):
            return
        value = getattr(module, name, None)
        tree = ast.parse(inspect.getsource(module))
        if isinstance(value, TypeVar):
            for made in tree.body:
                if isinstance(made, ast.Assign) and ast.unparse(made.targets[0]) == name:
                    self.type_variables[name] = ast.unparse(made)
                    for used in names_in(made.value):
                        self.add(used, module)
            return
        origin = module.__name__
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and name in {each.asname or each.name for each in node.names}:
                origin = node.module or ""
        room = origin.rpartition(".")[0]
        in_room = room.startswith(f"{PACKAGE}.") and name in import_module(room).__all__
        if origin != module.__name__ and not in_room:
            self.by_module[origin].add(name)
            return
        face = origin if room == PACKAGE else room
        if not hasattr(import_module(face), name):
            raise Unfit(f"{name} of {module.__name__} is in the types of a method, but not in the face of {face}")
        self.by_module[face].add(name)

    def text(self) -> str:
        lines = [f"from {module} import {', '.join(sorted(names))}" for module, names in self.by_module.items()]
        return "\n".join([*lines, "", *self.type_variables.values()])


def is_active(value: type) -> bool:
    """Whether an object of the class waits for something, so that it needs a synchronous face."""
    return value.__module__.startswith(PACKAGE) and any(
        inspect.iscoroutinefunction(each) for owner in owners(value) for each in vars(owner).values()
    )


def reached() -> dict[str, type]:
    """The classes to write, by name."""
    found: dict[str, type] = {}
    todo: list[type] = [Client, *MADE_BY_USERS]
    while todo:
        cls = todo.pop()
        if cls.__name__ in found:
            continue
        found[cls.__name__] = cls
        for member in members(cls).values():
            for name in names_in(member.node.returns):
                value = getattr(member.module, name, None)
                if isinstance(value, type) and is_active(value):
                    todo.append(value)
    return found


class Writer:
    """Writes the synchronous classes of one room."""

    def __init__(self, room: str, classes: dict[str, type]) -> None:
        self.room = room
        self.classes = classes
        self.imports = Imports()

    def text(self) -> str:
        own = [cls for cls in self.classes.values() if room_of(cls) == self.room]
        own.sort(key=lambda cls: (cls.__module__, inspect.getsourcelines(cls)[1]))
        bodies = [self.of_class(cls) for cls in own]
        if self.room == "client":
            bodies.append(self.connect())
        head = [
            f'"""The synchronous classes of `{PACKAGE}.{self.room}`.',
            "",
            "Generated by tools/make_sync.py.",
            '"""',
            "",
        ]
        head += ["from __future__ import annotations", "", self.imports.text(), ""]
        return "\n".join([*head, *bodies])

    def use(self, module: ModuleType, *names: str) -> None:
        for name in names:
            if name not in self.classes:
                self.imports.add(name, module)
            elif room_of(self.classes[name]) != self.room:
                self.imports.by_module[f"{PACKAGE}.sync.{room_of(self.classes[name])}"].add(name)

    def of_class(self, cls: type) -> str:
        face = PACKAGE if cls.__name__ in import_module(PACKAGE).__all__ else f"{PACKAGE}.{room_of(cls)}"
        self.imports.by_module[face].add(f"{cls.__name__} as Async{cls.__name__}")
        variables = [each.__name__ for each in getattr(cls, "__parameters__", ())]
        module = sys.modules[cls.__module__]
        self.use(module, *variables)
        inner = f"Async{cls.__name__}" + (f"[{', '.join(variables)}]" if variables else "")
        is_client = cls is Client
        held = members(cls)
        is_entered = "__aenter__" in held and not is_client
        base = "OpenedClient" if is_client else f"{'EnteredProxy' if is_entered else 'Proxy'}[{inner}]"
        self.imports.by_module[HAND_MADE].add(base.partition("[")[0])
        if variables:
            self.imports.by_module["typing"].add("Generic")
            base += f", Generic[{', '.join(variables)}]"
        parts = [f"class {cls.__name__}({base}):", docstring(without_left_out(cls))]
        parts += self.constructor(cls) if cls in MADE_BY_USERS else []
        for each in attributes(cls):
            parts += self.of_attribute(cls, each)
        hand_made = {"__aenter__", "__aexit__", *(("open", "aclose") if is_client else ())}
        for member in held.values():
            if member.name not in hand_made:
                parts += self.of_member(cls, member)
        return f"{parts[0]}\n{textwrap.indent(chr(10).join(parts[1:]), '    ')}\n"

    def of_attribute(self, cls: type, attribute: Attribute) -> Iterator[str]:
        names = names_in(ast.parse(attribute.kind))
        if names & self.classes.keys():
            raise Unfit(f"{cls.__name__}.{attribute.name} is a {attribute.kind}")
        self.use(attribute.module, *names)
        read = f"self._inner.{attribute.name}"
        yield "@property"
        yield f"def {attribute.name}(self) -> {attribute.kind}:"
        yield f"    return {read if attribute.is_final else f'self._lease.call(lambda: {read})'}"

    def constructor(self, cls: type) -> Iterator[str]:
        """Of a class that users create from other objects of the client."""
        node = tree_of(vars(cls)["__init__"])
        assert isinstance(node, ast.FunctionDef)
        self.use(sys.modules[cls.__module__], *names_in(node.args))
        self.imports.by_module[HAND_MADE] |= {"parts_of", "Proxy"}
        given = node.args.args[1].annotation
        if not names_in(given) & self.classes.keys():  # any object of the client that has what the annotation asks for
            node.args.args[1].annotation = ast.parse(
                f"Proxy[{ast.unparse(given or ast.Name('Any'))}]", mode="eval"
            ).body
        first, *others = [each.arg for each in node.args.args[1:]]
        yield f"def __init__({ast.unparse(node.args)}) -> None:"
        yield f"    inner, lease = parts_of({first})"
        yield f"    super().__init__(Async{cls.__name__}({', '.join(['inner', *others])}), lease)"

    def of_member(self, cls: type, member: Member) -> Iterator[str]:
        name, node = member.name, member.node
        if name == "__aiter__":
            if member.yields or isinstance(node, ast.AsyncFunctionDef):
                raise Unfit(f"{cls.__name__} has an __aiter__ that yields; move that to a method")
            self.imports.by_module["typing"].add("Self")
            yield "def __iter__(self) -> Self:"
            yield "    return self"
        elif name == "__anext__":
            self.imports.by_module[HAND_MADE].add("step")
            kind = self.types(member, node.returns)
            yield f"def __next__(self) -> {kind}:"
            yield "    return step(self._inner, self._lease)"
        else:
            yield from self.of_method(cls, member)

    def types(self, member: Member, annotation: ast.expr | None) -> str:
        """An annotation in its synchronous form, whose names are imported."""
        assert annotation is not None, f"{member.name} has no annotation"
        text = re.sub(r"\bAsyncGenerator\[(.+), None\]", r"AsyncIterator[\1]", ast.unparse(annotation))
        for word in ("Iterator", "Iterable"):
            text, count = re.subn(rf"\bAsync{word}\b", word, text)
            if count:
                self.imports.by_module["collections.abc"].add(word)
        self.use(member.module, *(names_in(ast.parse(text)) - {"Iterator", "Iterable"}))
        return text

    def of_method(self, cls: type, member: Member) -> Iterator[str]:
        node = member.node
        signature, passed = self.parameters(cls, member)
        text = textwrap.indent(docstring(ast.get_docstring(node)), "    ")
        call = f"self._inner.{member.name}"
        given = ", ".join([call, *passed])
        returned = ast.unparse(node.returns) if node.returns is not None else ""
        if member.is_property:
            yield "@property"
            given = f"lambda: {call}"
        if (submitted := re.fullmatch(r"asyncio\.Future\[(.*)\]", returned)) is not None:
            self.imports.by_module["concurrent.futures"].add("Future")
            kind, result = f"Future[{submitted[1]}]", f"self._lease.submit({given})"
        else:
            kind = self.types(member, node.returns)
            waits = isinstance(node, ast.AsyncFunctionDef) and not member.yields
            result = f"self._lease.{'run' if waits else 'call'}({given})"
            result = self.wrapped(cls, member, kind, result)
        yield f"def {RENAMED.get(member.name, member.name)}({signature}) -> {kind}:"
        if text:
            yield text
        yield f"    {'' if kind == 'None' else 'return '}{result}"

    def wrapped(self, cls: type, member: Member, kind: str, result: str) -> str:
        """The result of a call as the synchronous method returns it."""
        mentioned = names_in(ast.parse(kind)) & self.classes.keys()
        if kind.startswith("Iterator["):
            if mentioned:
                raise Unfit(f"{cls.__name__}.{member.name} iterates over {mentioned}")
            self.imports.by_module[HAND_MADE].add("Iteration")
            return f"Iteration({result}, self._lease)"
        if mentioned:
            if kind.partition("[")[0] not in mentioned:
                raise Unfit(f"{cls.__name__}.{member.name} returns {kind}, which holds {mentioned}")
            return f"{kind.partition('[')[0]}({result}, self._lease)"
        if "Async" in kind or "Awaitable" in kind or "Coroutine" in kind:
            raise Unfit(f"{cls.__name__}.{member.name} returns {kind}")
        return result

    def parameters(self, cls: type, member: Member) -> tuple[str, list[str]]:
        """The parameters of a method, and the arguments that pass them on."""
        arguments = spelled(member.node.args, member.module)
        used = names_in(arguments)
        if used & self.classes.keys():
            raise Unfit(f"{cls.__name__}.{member.name} takes {used & self.classes.keys()}")
        self.use(member.module, *used)
        passed = [each.arg for each in (*arguments.posonlyargs, *arguments.args)][1:]
        passed += [f"*{arguments.vararg.arg}"] if arguments.vararg else []
        passed += [f"{each.arg}={each.arg}" for each in arguments.kwonlyargs]
        passed += [f"**{arguments.kwarg.arg}"] if arguments.kwarg else []
        return ast.unparse(arguments), passed

    def connect(self) -> str:
        """The function `connect` of the room `client`."""
        module = import_module(f"{PACKAGE}.client")
        node = tree_of(vars(module)["connect"])
        assert isinstance(node, ast.FunctionDef)
        self.use(module, *names_in(node.args))
        self.imports.by_module[PACKAGE].add("connect as async_connect")
        self.imports.by_module["segstore.client.sync.loop"].add("Lease")
        arguments = [each.arg for each in node.args.args] + [f"{each.arg}={each.arg}" for each in node.args.kwonlyargs]
        body = [docstring(ast.get_docstring(node)), f"return Client(async_connect({', '.join(arguments)}), Lease())"]
        return f"def connect({ast.unparse(node.args)}) -> Client:\n" + textwrap.indent("\n".join(body), "    ")


def without_left_out(cls: type) -> str:
    """The docstring of a class without the attributes that are left out."""
    text = inspect.cleandoc(cls.__doc__ or "")
    for name in (each.partition(".")[2] for each in LEFT_OUT if each.startswith(f"{cls.__name__}.")):
        text = re.sub(rf"\n    {name}: .*", "", text)
    return text


def docstring(text: str | None) -> str:
    """A docstring of a synchronous class or method, in its source form."""
    if not text:
        return ""
    text = inspect.cleandoc(text).replace("\\", "\\\\")
    for pattern, word in WORDS:
        text = re.sub(pattern, word, text)
    return f'"""{text}"""' if "\n" not in text else f'"""{text}\n"""'


def room_of(cls: type) -> str:
    return cls.__module__.removeprefix(f"{PACKAGE}.").partition(".")[0]


def formatted(source: str) -> str:
    """A source in the house's format, without imports that it does not use."""
    for arguments in (["check", "--fix", "--quiet", "--select", "I,F401"], ["format"]):
        command = [sys.executable, "-m", "ruff", *arguments, "--stdin-filename", str(FOLDER / "written.py"), "-"]
        done = subprocess.run(command, input=source, capture_output=True, text=True, check=False, cwd=ROOT)
        if done.returncode or not done.stdout:
            raise Unfit(f"ruff refuses what was written: {done.stderr}")
        source = done.stdout
    return source


def face(classes: dict[str, type]) -> str:
    rooms: dict[str, list[str]] = defaultdict(list)
    for name, cls in classes.items():
        rooms[room_of(cls)].append(name)
    rooms["client"].append("connect")
    lines = [
        '"""The client for programs without asyncio: scripts, notebooks, threads.',
        "",
        '    with connect("tcp://127.0.0.1:9090") as pravega:',
        '        with pravega.event_writer("scope", "stream") as writer:',
        '            writer.write(b"…", routing_key="sensor-7")',
        "",
        "The classes have the names and methods of those of `segstore.client`, and `close` for `aclose`; values and",
        "errors are the same. The calls run in the event loop of a thread that all clients of the process share. They",
        "may come from any thread, also from one that runs an event loop. Ctrl-C cancels the pending call.",
        "",
        "Generated by tools/make_sync.py.",
        '"""',
        *(f"from {PACKAGE}.sync.{room} import {', '.join(sorted(names))}" for room, names in rooms.items()),
        f"__all__ = {sorted([*classes, 'connect'])!r}",
    ]
    return "\n".join(lines)


def sources() -> dict[Path, str]:
    """The modules and what they should hold."""
    classes = reached()
    rooms = sorted({room_of(cls) for cls in classes.values()})
    made = {FOLDER / f"{room}.py": formatted(Writer(room, classes).text()) for room in rooms}
    return {FOLDER / "__init__.py": formatted(face(classes))} | made


def main(arguments: list[str]) -> int:
    check = arguments == ["--check"]
    if arguments and not check:
        print(f"make_sync: there is no option {' '.join(arguments)!r}, only --check", file=sys.stderr)
        return 2
    try:
        made = sources()
    except Unfit as error:
        print(f"make_sync: {error}", file=sys.stderr)
        return 1
    stale = [path for path, text in made.items() if not path.exists() or path.read_text("utf-8") != text]
    for path in stale:
        if check:
            print(f"{path}: not up to date; run `make sync`", file=sys.stderr)
        else:
            path.write_text(made[path], "utf-8")
            print(f"wrote {path}")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
