"""Routes about the fault rules' decisions, unmatched rules, and the round-trip time."""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import Annotated

from fastapi import APIRouter, Query

from segstore.server.control_api.controlled import Here
from segstore.server.control_api.models import DecisionInfo, Decisions, RoundTripTime, Unmatched
from segstore.server.control_api.problems import ApiProblem, shown
from segstore.server.control_api.routes.faults import check_round_trip, faults_of
from segstore.server.faults import Decision, NoSuchRule

router = APIRouter(prefix="/v1", tags=["faults"])


@router.get("/decisions", summary="List the decisions of fault rules, oldest first")
async def list_decisions(
    controlled: Here,
    rule: Annotated[str | None, Query(description="Only decisions of this rule, which exists or has decided.")] = None,
    after: Annotated[int, Query(ge=0, description="Only decisions with a greater number.")] = 0,
    limit: Annotated[int, Query(ge=1, le=1_000, description="Maximum number of decisions.")] = 100,
) -> Decisions:
    faults = faults_of(controlled)
    if rule is not None and rule not in faults.rules and all(decision.rule != rule for decision in faults.decisions):
        raise ApiProblem(422, str(NoSuchRule(rule[:200], tuple(faults.rules))), "query.rule")
    forgotten, decisions = faults.forgotten_decisions, faults.decisions
    found = (
        _info(number, each)
        for number, each in enumerate(decisions[max(0, after - forgotten) :], max(after, forgotten) + 1)
        if rule is None or each.rule == rule
    )
    last = forgotten + len(decisions)
    return Decisions(last=last, forgotten=forgotten, decisions=list(islice(found, limit)))


@router.get("/unmatched", summary="Fault rules that never matched or never fired, with the nearest requests")
async def list_unmatched(controlled: Here) -> Unmatched:
    found = []
    for text in faults_of(controlled).each_unmatched():
        found.append(shown(text))
        await asyncio.sleep(0)
    return Unmatched(unmatched=found)


@router.put("/round-trip", summary="Set the minimum delay of every reply")
async def set_round_trip(controlled: Here, given: RoundTripTime) -> RoundTripTime:
    there = faults_of(controlled)
    check_round_trip(controlled, given.round_trip_ms)
    there.round_trip_ms = given.round_trip_ms
    return given


def _info(number: int, decision: Decision) -> DecisionInfo:
    return DecisionInfo.of(
        decision,
        number=number,
        type=shown(decision.type_name),
        segments=[shown(segment) for segment in decision.segments],
        request_id=None if decision.request_id is None else str(decision.request_id),
        event_number=None if decision.event_number < 0 else decision.event_number,
    )
