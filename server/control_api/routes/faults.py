"""Routes that list, add and remove fault rules and toxics while the server runs, and show the rules' decisions.

Rules have the format of fault files, in JSON or YAML. A whole fault file replaces all rules and toxics atomically.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from itertools import islice
from typing import Annotated

from fastapi import APIRouter, Path, Query

from segstore.server.control_api import models as m
from segstore.server.control_api.controlled import Controlled, Here, faults_of, faults_with
from segstore.server.control_api.problems import ApiProblem, shown
from segstore.server.control_api.routes import NAME
from segstore.server.control_api.routes.bodies import YamlRoute
from segstore.server.faults import Decision, Faults, FaultSettings, NoSuchRule, RoundTrip, Rule
from segstore.server.toxics import Toxic

_Name = Annotated[str, Path(description="The name of a rule.")]
_MADE_UP = re.compile(r"rule \d+")


router = APIRouter(prefix="/v1/faults", tags=["faults"], route_class=YamlRoute)


def _rules(there: Faults) -> list[m.FaultRule]:
    return [m.FaultRule.of(tally, held=there.held(tally.name)) for tally in there.tallies()]


def _rule(there: Faults, name: str) -> m.FaultRule:
    return next(rule for rule in _rules(there) if rule.name == name)


def _state(there: Faults) -> m.FaultRules:
    """All rules and their counts, as they are now."""
    round_trip = there.round_trip_ms
    return m.FaultRules(
        seed=there.seed,
        round_trip_ms=round_trip if isinstance(round_trip, int | float) else dict(round_trip),
        rules=_rules(there),
    )


@router.get("", summary="Rules and their counts")
async def list_faults(controlled: Here) -> m.FaultRules:
    return _state(faults_of(controlled))


@router.post("", summary="Append a rule", status_code=201)
async def add_fault(controlled: Here, rule: Rule) -> m.Added:
    there = faults_of(controlled)
    _check_rule(controlled, rule, "body")
    if rule.name in there.rules:
        raise ApiProblem(409, f"there is a rule with the name {rule.name!r}", "body.name")
    try:
        return m.Added(name=there.add(rule))
    except ValueError as error:
        raise ApiProblem(409, str(error), "body") from error


@router.put("", summary="Replace all rules and toxics with a fault file")
async def replace_faults(controlled: Here, settings: FaultSettings) -> m.FaultRules:
    there = faults_of(controlled)
    _check_rules(controlled, settings.rules)
    _check_round_trip(controlled, settings.round_trip_ms)
    for index, toxic in enumerate(settings.toxics):
        controlled.check_store(toxic.store, f"body.toxics[{index}].store")
    there.clear()
    there.toxics.clear()
    there.load(settings)
    return _state(there)


@router.delete("", summary="Remove all rules", status_code=204)
async def clear_faults(controlled: Here) -> None:
    faults_of(controlled).clear()


@router.get(f"/{NAME}", summary="One rule and its counts")
async def get_fault(controlled: Here, name: _Name) -> m.FaultRule:
    return _rule(faults_with(controlled, name), name)


@router.put(f"/{NAME}", summary="Replace a rule at its place, and release the requests it holds")
async def replace_fault(controlled: Here, name: _Name, rule: Rule) -> m.FaultRule:
    there = faults_with(controlled, name)
    _check_rule(controlled, rule, "body")
    taken = rule.name != name and rule.name in there.rules
    try:
        return _rule(there, there.replace(name, rule))
    except ValueError as error:
        raise ApiProblem(409, str(error), "body.name" if taken else "body") from error


@router.delete(f"/{NAME}", summary="Remove a rule, and release the requests it holds", status_code=204)
async def remove_fault(controlled: Here, name: _Name) -> None:
    faults_with(controlled, name).clear(name)


@router.post(f"/{NAME}/disable", summary="Disable a rule, and release the requests it holds")
async def disable_fault(controlled: Here, name: _Name) -> m.FaultRule:
    there = faults_with(controlled, name)
    there.disable(name)
    return _rule(there, name)


@router.post(f"/{NAME}/enable", summary="Enable a rule")
async def enable_fault(controlled: Here, name: _Name) -> m.FaultRule:
    there = faults_with(controlled, name)
    there.enable(name)
    return _rule(there, name)


@router.post(f"/{NAME}/release", summary="Release the requests that a rule holds")
async def release_fault(controlled: Here, name: _Name) -> m.Released:
    return m.Released(released=faults_with(controlled, name).release(name))


def _check_rules(controlled: Controlled, rules: Sequence[Rule]) -> None:
    """Refuses rules of a fault file, also rules with a name reserved for unnamed rules."""
    for index, rule in enumerate(rules):
        _check_rule(controlled, rule, f"body.rules[{index}]")
        if _MADE_UP.fullmatch(rule.name):
            raise ApiProblem(422, f"{rule.name!r} is reserved for rules without a name", f"body.rules[{index}].name")


def _check_round_trip(controlled: Controlled, round_trip: RoundTrip) -> None:
    """Refuses round-trip times of stores that do not exist."""
    for number in () if isinstance(round_trip, int | float) else round_trip:
        controlled.check_store(number, f"body.round_trip_ms.{number}")


def _check_rule(controlled: Controlled, rule: Rule, where: str) -> None:
    """Refuses a rule of an unknown store, or a rule that JSON cannot encode, such as a lone surrogate."""
    controlled.check_store(rule.store, f"{where}.store")
    try:
        rule.model_dump_json()
    except (ValueError, RecursionError) as error:
        raise ApiProblem(422, f"{where} cannot be kept: it cannot be encoded as JSON in UTF-8", where) from error


toxics = APIRouter(prefix="/v1/toxics", tags=["faults"])


@toxics.get("", summary="Toxics and the connections that have them")
async def list_toxics(controlled: Here) -> m.ActiveToxics:
    return m.ActiveToxics(toxics=faults_of(controlled).toxics.tallies())


@toxics.post("", summary="Add a toxic", status_code=201)
async def add_toxic(controlled: Here, toxic: Toxic) -> m.Added:
    there = faults_of(controlled).toxics
    controlled.check_store(toxic.store, "body.store")
    try:
        return m.Added(name=there.add(toxic))
    except ValueError as error:
        raise ApiProblem(409, str(error), "body.name") from error


@toxics.delete("", summary="Remove all toxics", status_code=204)
async def clear_toxics(controlled: Here) -> None:
    faults_of(controlled).toxics.clear()


@toxics.delete(f"/{NAME}", summary="Remove a toxic", status_code=204)
async def remove_toxic(controlled: Here, name: Annotated[str, Path(description="The name of a toxic.")]) -> None:
    faults_of(controlled).toxics.clear(name)


decisions = APIRouter(prefix="/v1", tags=["faults"])


@decisions.get("/decisions", summary="List the decisions of fault rules, oldest first")
async def list_decisions(
    controlled: Here,
    rule: Annotated[str | None, Query(description="Only decisions of this rule, which exists or has decided.")] = None,
    after: Annotated[int, Query(ge=0, description="Only decisions with a greater number.")] = 0,
    limit: Annotated[int, Query(ge=1, le=1_000, description="Maximum number of decisions.")] = 100,
) -> m.Decisions:
    faults = faults_of(controlled)
    if rule is not None and rule not in faults.rules and all(decision.rule != rule for decision in faults.decisions):
        raise ApiProblem(422, str(NoSuchRule(rule, tuple(faults.rules))), "query.rule")
    forgotten, so_far = faults.forgotten_decisions, faults.decisions
    matching = (
        _decision(number, decision)
        for number, decision in enumerate(so_far[max(0, after - forgotten) :], max(after, forgotten) + 1)
        if rule is None or decision.rule == rule
    )
    last = forgotten + len(so_far)
    return m.Decisions(last=last, forgotten=forgotten, decisions=list(islice(matching, limit)))


@decisions.get("/unmatched", summary="Fault rules that never matched or never fired, with the nearest requests")
async def list_unmatched(controlled: Here) -> m.Unmatched:
    texts = []
    for text in faults_of(controlled).each_unmatched():
        texts.append(shown(text))
        await asyncio.sleep(0)
    return m.Unmatched(unmatched=texts)


@decisions.put("/round-trip", summary="Set the minimum delay of every reply")
async def set_round_trip(controlled: Here, body: m.RoundTripTime) -> m.RoundTripTime:
    there = faults_of(controlled)
    _check_round_trip(controlled, body.round_trip_ms)
    there.round_trip_ms = body.round_trip_ms
    return body


def _decision(number: int, decision: Decision) -> m.DecisionInfo:
    return m.DecisionInfo.of(
        decision,
        number=number,
        type=shown(decision.type_name),
        segments=[shown(segment) for segment in decision.segments],
        request_id=None if decision.request_id is None else str(decision.request_id),
        event_number=None if decision.event_number < 0 else decision.event_number,
    )
