"""Routes that list, add and remove fault rules while the server runs.

Rules have the format of fault files, in JSON or YAML. A whole fault file replaces all rules and toxics atomically.
"""

from __future__ import annotations

import re
from typing import Annotated

import msgspec
from fastapi import APIRouter, Path, Response

from segstore.server.control_api.controlled import Controlled
from segstore.server.control_api.models import Added, FaultRule, FaultRules, Released
from segstore.server.control_api.problems import ApiProblem
from segstore.server.control_api.routes.bodies import LongBodyRoute
from segstore.server.faults import Faults, FaultSettings, NoSuchRule, Rule

_Name = Annotated[str, Path(description="The name of a rule.")]
_MADE_UP = re.compile(r"rule \d+")


def faults_of(controlled: Controlled) -> Faults:
    """The fault rules and toxics. Raises ApiProblem."""
    if controlled.faults is None:
        raise ApiProblem(409, "faults are not available: the store was made with watched=False", "path")
    return controlled.faults


def router(controlled: Controlled) -> APIRouter:
    made = APIRouter(prefix="/v1/faults", tags=["faults"], route_class=LongBodyRoute)
    _all_rules(made, controlled)
    _one_rule(made, controlled)
    return made


def _faults_with(controlled: Controlled, name: str) -> Faults:
    """The fault rules, of which one has the name. Raises ApiProblem."""
    there = faults_of(controlled)
    if name not in there.rules:
        raise ApiProblem(404, str(NoSuchRule(name[:200], tuple(there.rules))), "path.name")
    return there


def _rules(there: Faults) -> list[FaultRule]:
    return [FaultRule(**msgspec.structs.asdict(each), held=there.held(each.name)) for each in there.tallies()]


def _rule(there: Faults, name: str) -> FaultRule:
    return next(each for each in _rules(there) if each.name == name)


def _state(there: Faults) -> FaultRules:
    given = there.round_trip_ms
    round_trip_ms = given if isinstance(given, int | float) else dict(given)
    return FaultRules(seed=there.seed, round_trip_ms=round_trip_ms, rules=_rules(there))


def _all_rules(made: APIRouter, controlled: Controlled) -> None:
    @made.get("", summary="Rules and their counts")
    async def list_faults() -> FaultRules:
        return _state(faults_of(controlled))

    @made.post("", summary="Append a rule", status_code=201)
    async def add_fault(rule: Rule) -> Added:
        there = faults_of(controlled)
        _can_be_shown(rule, "body")
        if rule.name in there.rules:
            raise ApiProblem(409, f"there is a rule with the name {rule.name!r}", "body.name")
        try:
            return Added(name=there.add(rule))
        except ValueError as error:
            raise ApiProblem(409, str(error), "body") from error

    @made.put("", summary="Replace all rules and toxics with a fault file")
    async def replace_faults(settings: FaultSettings) -> FaultRules:
        there = faults_of(controlled)
        for index, each in enumerate(settings.rules):
            _can_be_shown(each, f"body.rules[{index}]")
            if _MADE_UP.fullmatch(each.name):
                raise ApiProblem(
                    422, f"{each.name!r} is reserved for rules without a name", f"body.rules[{index}].name"
                )
        there.clear()
        there.toxics.clear()
        there.load(settings)
        return _state(there)

    @made.delete("", summary="Remove all rules", status_code=204)
    async def clear_faults() -> Response:
        faults_of(controlled).clear()
        return Response(status_code=204)


def _one_rule(made: APIRouter, controlled: Controlled) -> None:
    @made.get("/{name:path}", summary="One rule and its counts")
    async def get_fault(name: _Name) -> FaultRule:
        return _rule(_faults_with(controlled, name), name)

    @made.put("/{name:path}", summary="Replace a rule at its place, and release what it holds")
    async def replace_fault(name: _Name, rule: Rule) -> FaultRule:
        there = _faults_with(controlled, name)
        _can_be_shown(rule, "body")
        taken = rule.name != name and rule.name in there.rules
        try:
            return _rule(there, there.replace(name, rule))
        except ValueError as error:
            raise ApiProblem(409, str(error), "body.name" if taken else "body") from error

    @made.delete("/{name:path}", summary="Remove a rule, and release what it holds", status_code=204)
    async def remove_fault(name: _Name) -> Response:
        _faults_with(controlled, name).clear(name)
        return Response(status_code=204)

    @made.post("/{name:path}/disable", summary="Disable a rule, and release what it holds")
    async def disable_fault(name: _Name) -> FaultRule:
        there = _faults_with(controlled, name)
        there.disable(name)
        return _rule(there, name)

    @made.post("/{name:path}/enable", summary="Enable a rule")
    async def enable_fault(name: _Name) -> FaultRule:
        there = _faults_with(controlled, name)
        there.enable(name)
        return _rule(there, name)

    @made.post("/{name:path}/release", summary="Release what a rule holds now")
    async def release_fault(name: _Name) -> Released:
        return Released(released=_faults_with(controlled, name).release(name))


def _can_be_shown(rule: Rule, where: str) -> None:
    """Refuses a rule that cannot be encoded as JSON, for example because of a lone surrogate."""
    try:
        rule.model_dump_json()
    except (ValueError, RecursionError) as error:
        raise ApiProblem(422, f"{where} cannot be kept: it cannot be encoded as JSON in UTF-8", where) from error
