"""Public constructors name and type their keyword arguments, as the models and functions behind them do."""

import inspect
import re
from collections.abc import Callable
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import pytest

from segstore.client import connect
from segstore.client.tables.table import IterationOptions, KeyValueTable
from segstore.explore import explore
from segstore.server import MockSegmentStore, StoreOptions, StoreSettings
from segstore.server.cluster import MockCluster, MockClusterOptions
from segstore.server.faults import Faults, Observer, Rule, RuleOptions
from segstore.server.replay import TraceOptions, TraceServer
from segstore.server.tap import TapSettings
from segstore.tap import Tap, TapPorts, run_tap
from segstore.testing import (
    Explore,
    RunningFaults,
    ServerOptions,
    ServerProcess,
    ServerThread,
    StartServer,
    StartTap,
    StartTrace,
)
from segstore.testing.on_the_loop import start_cluster
from tests.looped import looped

DOORS: list[Callable[..., Any]] = [
    MockSegmentStore.__init__,
    MockCluster.__init__,
    Tap.__init__,
    run_tap,
    TraceServer.__init__,
    Faults.add,
    RunningFaults.add,
    ServerThread.serve,
    ServerProcess.serve,
    ServerThread.replay,
    ServerThread.tap,
    StartServer.__call__,
    StartTap.__call__,
    StartTrace.__call__,
    Explore.__call__,
    explore,
    connect,
]


def one_of(annotation: Any) -> tuple[Any, ...]:
    """The types that an annotation allows."""
    return get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)


def allows(wider: Any, narrower: Any) -> bool:
    """Whether each type that the second allows is one that the first allows, or a subclass."""
    plain = [get_origin(each) or each for each in one_of(wider)]
    return all(
        each in one_of(wider) or (isinstance(kind := get_origin(each) or each, type) and issubclass(kind, tuple(plain)))
        for each in one_of(narrower)
    )


@looped("door", DOORS)
def test_a_door_takes_no_keyword_of_any_name(door: Callable[..., Any]) -> None:
    for parameter in inspect.signature(door).parameters.values():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            assert str(parameter.annotation).startswith("Unpack["), parameter


@looped(
    ("options", "model", "others"),
    [
        (StoreOptions, StoreSettings, set()),
        (TapPorts, TapSettings, {"controller", "store", "tls"}),
        (RuleOptions, Rule, {"match", "do"}),
    ],
)
def test_options_are_the_fields_of_their_model(options: Any, model: Any, others: set[str]) -> None:
    hints = get_type_hints(options)
    assert hints.keys() == model.model_fields.keys() - others
    for name, hint in hints.items():
        if name != "nth":  # a single number is allowed, too
            assert allows(hint, model.model_fields[name].annotation), name


@looped(
    ("options", "function", "others"),
    [(TraceOptions, TraceServer, set()), (IterationOptions, KeyValueTable._iterate, set())],
)
def test_options_are_the_keywords_of_their_function(options: Any, function: Any, others: set[str]) -> None:
    named = {
        parameter.name: parameter.annotation
        for parameter in inspect.signature(function).parameters.values()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY
    }
    assert {name: each.__forward_arg__ for name, each in options.__annotations__.items() if name not in others} == named


def test_options_of_a_server_are_those_of_a_cluster_with_users_and_a_recording() -> None:
    parameters = inspect.signature(start_cluster).parameters.values()
    named = {each.name for each in parameters if each.kind is inspect.Parameter.KEYWORD_ONLY}
    assert ServerOptions.__annotations__.keys() == named | MockClusterOptions.__annotations__.keys()


@looped(
    ("made", "said"),
    [
        (lambda: MockCluster(store=3), "store: there is no such option (stores?)"),  # type: ignore[call-arg]  # wrong
        (lambda: MockCluster(stores="3"), "stores is a number, not '3'"),  # type: ignore[arg-type]  # wrong
        (lambda: MockSegmentStore(contaners=3), "contaners: there is no such option (containers?)"),  # type: ignore[call-arg]  # wrong
        (lambda: Tap("tcp://h:1", recrd="a"), "recrd: there is no such option (record?)"),  # type: ignore[call-arg]  # wrong
        (lambda: TraceServer([], mode="mtach"), "mode is one of strict, match, not 'mtach' (match?)"),  # type: ignore[arg-type]  # wrong
        (
            lambda: TraceServer([], missing="eror"),  # type: ignore[arg-type]  # wrong
            "missing is one of error, close, pass, fail, not 'eror' (error?)",
        ),
        (
            lambda: Observer().requests(stage="aplied"),  # type: ignore[arg-type]  # wrong
            "stage is one of received, applied, refused, replied, not 'aplied' (applied?)",
        ),
    ],
)
def test_a_mistyped_option_is_refused_in_one_sentence(made: Callable[[], object], said: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(said)}$"):
        made()
