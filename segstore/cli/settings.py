"""The settings of `segstore serve`, and their sources: options, environment variables and a file.

A setting is a field of a model, which defines its type, default and help. `GROUPS` lists the settings that users can
give. Options, variables, keys of the file, `--help` and the reference page are derived from it.

Invariant: an option takes precedence over a variable, a variable over the file, the file over the default; an
error names the source of the value, and secrets are not shown.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, NoReturn, Self, get_args, get_origin

from pydantic import BaseModel, Field, SecretStr, TypeAdapter, ValidationError, model_validator
from pydantic.fields import FieldInfo

from segstore.cli.terminal import argument_text, error_text
from segstore.server.auth import read_secret
from segstore.server.cluster import ClusterSettings, ZooKeeperSettings
from segstore.server.config import SETTINGS, read_toml, unknown_name
from segstore.server.controller import read_config
from segstore.wire.validation import first_error, message_of


class ServeSettings(BaseModel):
    """All settings of `segstore serve`."""

    model_config = SETTINGS

    cluster: ClusterSettings = ClusterSettings()
    """The stores and the controller."""
    password_file: Path | None = None
    """File of users, one `user:password:permissions` per line; without it, anyone may call the controller."""
    token_ttl_s: int = Field(default=600, ge=-1)
    """Lifetime of issued tokens in seconds; -1 for no expiry."""
    open_controller: bool = False
    """Allow a key without a password file: every caller gets tokens for everything."""
    open_stores: bool = False
    """Allow a password file without a key: the stores require no tokens."""
    controller_config: Path | None = None
    """File with settings of the controller (TOML); options of the controller override it."""
    faults: Path | None = None
    """File with fault rules and toxics (YAML or JSON)."""
    record: Path | None = None
    """Record the traffic of the stores to a new file, .wtrace, .jsonl or .pcapng, or to standard output (-)."""
    record_tokens: bool = False
    """Include delegation tokens in the recording."""
    announce: Literal["text", "json"] = "text"
    """Format of the line that announces the addresses."""
    log_level: Literal["debug", "info", "warning", "error"] = "warning"
    """Lowest level of log lines on standard error."""
    coordination: ZooKeeperSettings = ZooKeeperSettings()
    """The ZooKeeper of a cluster of several processes."""

    @model_validator(mode="after")
    def _check_exposure(self) -> Self:
        has_key, has_users = self.cluster.store.auth_key is not None, self.password_file is not None
        if has_key and not has_users and self.cluster.controller_port is not None and not self.open_controller:
            raise ValueError(
                "with a key but no password file the controller gives tokens for everything to every caller; give "
                "--password-file FILE, or --open-controller if this is intended"
            )
        if has_users and not has_key and not self.open_stores:
            raise ValueError(
                "with a password file but no key the stores accept requests from every peer; give "
                "--auth-key-file FILE, or --open-stores if this is intended"
            )
        return self


GROUPS: Final[Mapping[str, str]] = {
    "Addresses": "host port controller_port rest_port admin_port http_port http_token_file published_host announce",
    "Storage": "data memory_bytes max_memory reuse_names transient_idle_s",
    "Containers": "containers own stores rebalance",
    "Security": (
        "tls_cert tls_key auth_key_file auth_key password_file token_ttl_s open_controller open_stores strict_auth"
    ),
    "Protocol": (
        "wire_version strict_wire_version strict_request_ids strict_transient_attributes long_poll_s stack_traces "
        "max_connections"
    ),
    "Controller": "controller_config commit_delay_ms scale_delay_ms lease_cap_ms",
    "Faults, recording and log": "faults record record_tokens history_bytes log_level",
    "Cluster of several processes": (
        "zookeeper zookeeper_auth_file configuration_zookeeper zookeeper_patience_ms trust_network session_timeout_ms "
        "session_expired_policy session_reconnect_retries takeover_delay_ms preload stale_node load_report_interval_ms"
    ),
}
_ADVANCED: Final = frozenset(
    f"{GROUPS['Cluster of several processes']} own rebalance transient_idle_s strict_auth strict_wire_version "
    "strict_request_ids strict_transient_attributes stack_traces long_poll_s max_connections controller_config".split()
)
"""Settings that `serve --help-all` shows, and `serve --help` does not."""

_FIELDS: Final = {
    "max_memory": "max_memory_bytes",
    "auth_key_file": "auth_key",
    "zookeeper_auth_file": "zookeeper_auth",
}
"""Settings whose name differs from their field's."""
_HELP: Final = {
    "auth_key_file": "File with the key that signs delegation tokens; without it, no tokens are required.",
    "auth_key": "The key itself; every user of the machine can see it in the process list.",
    "zookeeper_auth_file": "File with the user:password that protects nodes in ZooKeeper; without it, nodes are open.",
}
_DEFAULTS: Final[dict[str, Any]] = {"controller_port": 9090}
"""Defaults of `serve` that differ from the models'."""
_METAVARS: Final = {
    "host": "HOST",
    "published_host": "NAME",
    "own": "N,N,…",
    "auth_key": "KEY",
    "data": "DIR",
    "zookeeper": "HOST:PORT",
    "configuration_zookeeper": "HOST:PORT",
}
_UNITS: Final = {"port": "PORT", "s": "SECONDS", "ms": "MS", "bytes": "BYTES", "memory": "BYTES"}
_NEW: Final = ("data", "record")
"""Paths that need not exist."""
_OTHERS: Final = re.compile("SEGSTORE_CLIENT_.*|SEGSTORE_CODEC|SEGSTORE_CONFIG|SEGSTORE_CONTROLLER|SEGSTORE_URL")
"""Variables that are no setting of `segstore serve`."""
_SENTENCE: Final = re.compile(r"(.+?\.)(?:\s|$)", re.DOTALL)


class BadSetting(ValueError):
    """An invalid value; the text is one sentence with its source."""


@cache
def _docstrings(model: type[BaseModel]) -> dict[str, str]:
    """The docstrings of a model's fields, by name, parsed from its source when help is shown: they are not kept at run
    time, and pydantic would parse them at every start. Empty if the source is not installed."""
    import ast
    import inspect

    try:
        declared = ast.parse(inspect.getsource(model)).body[0]
    except OSError:
        return {}
    assert isinstance(declared, ast.ClassDef)
    return {
        ast.unparse(field.target): inspect.cleandoc(ast.literal_eval(text.value))
        for field, text in pairwise(declared.body)
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr)
    }


class Setting(NamedTuple):
    """A setting. model: declares its field. path: the field names that lead to it from `ServeSettings`."""

    name: str
    model: type[BaseModel]
    path: tuple[str, ...]
    field: FieldInfo

    @property
    def option(self) -> str:
        return f"--{self.name.replace('_', '-')}"

    @property
    def is_advanced(self) -> bool:
        return self.name in _ADVANCED

    @property
    def variable(self) -> str:
        return f"SEGSTORE_{self.name.upper()}"

    @property
    def description(self) -> str:
        return " ".join((_HELP.get(self.name) or _docstrings(self.model).get(self.path[-1], "")).split())

    @property
    def help(self) -> str:
        """The first sentence of the description."""
        sentence = _SENTENCE.match(self.description)
        return self.description if sentence is None else sentence[1]

    @property
    def default(self) -> Any:
        return _DEFAULTS.get(self.name, self.field.default)

    @property
    def type(self) -> Any:
        """The type of its values, without None."""
        annotation = self.field.annotation
        if get_origin(annotation) is Literal:
            return annotation
        return next((arg for arg in get_args(annotation) if arg is not type(None)), annotation)

    @property
    def is_flag(self) -> bool:
        return self.type is bool

    @property
    def is_file(self) -> bool:
        """Whether the value is the name of a file, or of a directory."""
        return self.type is Path or self.name.endswith("_file")

    @property
    def metavar(self) -> str:
        if get_origin(self.type) is Literal:
            return f"[{'|'.join(get_args(self.type))}]"
        return _METAVARS.get(self.name) or ("FILE" if self.is_file else _UNITS.get(self.name.rpartition("_")[2], "N"))

    @property
    def usage(self) -> str:
        """The option, as in `--help`."""
        if self.is_flag:
            return f"{self.option} / --no-{self.option[2:]}" if self.default else self.option
        return f"{self.option} {self.metavar}"

    @property
    def shown_default(self) -> str:
        """The default, as in `--help`; empty without a default, and for a flag that is off."""
        if self.is_flag:
            return "on" if self.default else ""
        if self.default is None:
            return ""
        return f"{self.default:g}" if isinstance(self.default, float) else str(self.default)

    def value(self, given: Any, *, folder: Path | None = None) -> Any:
        """Parses the text of an option or variable, or, with `folder`, a value of a file in that folder.

        Raises ValueError.
        """
        if isinstance(given, str) and not self.is_file:
            given = argument_text(given)
        if self.is_file and given == "":
            raise ValueError("the name is empty")
        if self.is_file and isinstance(given, str):
            path = Path(given) if folder is None else folder / given
            if self.type is not Path:
                given = read_secret(path)
            elif self.name not in _NEW and not path.exists():
                raise ValueError(f"file {given!r} does not exist")
            elif self.name not in _NEW and path.is_dir():
                raise ValueError(f"{given!r} is a directory, not a file")
            else:  # also a pipe, as a shell makes for <(command)
                given = str(path)
        adapter: TypeAdapter[Any] = TypeAdapter(self.field.rebuild_annotation())
        try:
            if folder is None:
                return adapter.validate_python(given)
            # In JSON mode, strict validation accepts a string for a path.
            return adapter.validate_json(json.dumps(given, default=_no_value), strict=True)
        except ValidationError as error:
            first = first_error(error)
            says_all = self.type is SecretStr or first["type"] == "value_error"
            raise ValueError(message_of(first) if says_all else f"{message_of(first)}, not {given!r}") from None


def _no_value(value: object) -> NoReturn:
    raise ValueError(f"a {type(value).__name__} is not a value of a setting")


def _fields(
    model: type[BaseModel], path: tuple[str, ...] = ()
) -> Iterator[tuple[type[BaseModel], tuple[str, ...], FieldInfo]]:
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from _fields(field.annotation, (*path, name))
        else:
            yield model, (*path, name), field


def groups() -> dict[str, list[Setting]]:
    """All settings, by group."""
    fields = {path[-1]: (model, path, field) for model, path, field in _fields(ServeSettings)}
    return {
        group: [Setting(name, *fields[_FIELDS.get(name, name)]) for name in names.split()]
        for group, names in GROUPS.items()
    }


def settings() -> dict[str, Setting]:
    """All settings, by name."""
    return {setting.name: setting for group in groups().values() for setting in group}


def read_settings(
    options: Mapping[str, Any], environment: Mapping[str, str], file: Path | None, **defaults: Any
) -> ServeSettings:
    """Reads settings from options, environment variables and a file. defaults: by name, in place of the models'.

    Raises BadSetting, and OSError for a file that cannot be read.
    """
    known = settings()
    values: dict[tuple[str, ...], Any] = {}
    for source in (
        ((each, each.option, options[name], None) for name, each in known.items() if name in options),
        ((each, each.variable, given, None) for each in known.values() if (given := environment.get(each.variable))),
        () if file is None else _of_file(file, known),
    ):
        of_source: dict[tuple[str, ...], tuple[str, Any]] = {}
        for setting, origin, given, folder in source:
            if setting.path in of_source:
                raise BadSetting(f"give either {origin} or {of_source[setting.path][0]}, not both")
            try:
                of_source[setting.path] = origin, setting.value(given, folder=folder)
            except (ValueError, OSError) as error:
                raise BadSetting(f"{origin}: {error_text(error) if isinstance(error, OSError) else error}") from None
        values = {path: value for path, (_, value) in of_source.items()} | values
    for name, value in (_DEFAULTS | defaults).items():
        values.setdefault(known[name].path, value)
    return _made(values)


def misspelt(environment: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yields unknown variables that resemble the variable of a setting, each with that variable."""
    known = [setting.variable for setting in settings().values()]
    for name in environment:
        is_strange = name.startswith("SEGSTORE_") and name not in known and not _OTHERS.fullmatch(name)
        if is_strange and (near := difflib.get_close_matches(name, known, 1, 0.9)):
            yield name, near[0]


def _of_file(path: Path, known: Mapping[str, Setting]) -> Iterable[tuple[Setting, str, Any, Path]]:
    try:
        values = read_toml(path)
    except ValueError as error:
        raise BadSetting(str(error)) from None
    for name, value in values.items():
        if name not in known:
            raise BadSetting(f"{path}: {name}: {unknown_name('setting', name, known)}")
        yield known[name], f"{path}: {name}", value, path.parent


def _made(values: Mapping[tuple[str, ...], Any]) -> ServeSettings:
    nested: dict[str, Any] = {}
    try:
        if (config := values.get(("controller_config",))) is not None:
            nested = {"cluster": {"controller": read_config(config).model_dump()}}
        for (*models, name), value in values.items():
            inner = nested
            for model in models:
                inner = inner.setdefault(model, {})
            inner[name] = value
        return ServeSettings.model_validate(nested)
    except ValidationError as error:
        raise BadSetting(message_of(first_error(error))) from None
    except ValueError as error:
        raise BadSetting(str(error)) from error
