"""Routes for the key-value tables of a scope. Their entries are read with the routes that write them."""

from __future__ import annotations

from functools import partial
from typing import Final

from fastapi import APIRouter

from segstore.server.control_api.contents import models as m
from segstore.server.control_api.contents.asking import After, Limit, answers, named
from segstore.server.control_api.controlled import Here
from segstore.server.control_api.steering import Scope, Table, controller_of
from segstore.server.controller.state import Table as KnownTable

_LISTED: Final = 100


router = APIRouter(prefix="/v1", tags=["tables"])


@router.get("/tables/{scope}", summary="Key-value tables of a scope")
async def list_tables(controlled: Here, scope: Scope, after: After = "", limit: Limit = 100) -> m.TablePage:
    controller = controller_of(controlled)
    page, following = named(partial(controller.tables.names, scope), after, limit)
    there = controller.state.scope(scope).tables
    return m.TablePage(tables=[_summary(there[name]) for name in page if name in there], next=following)


@router.get("/tables/{scope}/{table}", summary="A key-value table and its partitions")
async def get_table(controlled: Here, scope: Scope, table: Table) -> m.TableDetails:
    controller = controller_of(controlled)
    known = controller.state.table(scope, table)
    partitions = known.epoch.segments
    listed = {partition: known.segment_name(partition) for partition in partitions[:_LISTED]}
    counts = await answers(controller.segments.count_entries, list(listed.values()))
    return m.TableDetails.of(
        known.config,
        **_summary(known).model_dump(),
        segments=[
            m.Partition(id=segment.id, name=name, low=segment.start, high=segment.end, entries=counts.get(name))
            for segment, name in listed.items()
        ],
        entries=sum(counts.values()) if len(counts) == len(partitions) else None,
    )


def _summary(table: KnownTable) -> m.TableSummary:
    return m.TableSummary.of(table.config, scope=table.scope, table=table.name, created_ms=table.created_ms)
