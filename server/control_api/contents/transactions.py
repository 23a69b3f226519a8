"""Routes for the transactions of a stream, with their segments and sizes.

A transaction has a segment for each segment of its epoch; a page measures at most `_MOST_MEASURED` segments.
"""

from __future__ import annotations

from heapq import nsmallest
from itertools import islice
from typing import Annotated, Final
from uuid import UUID

from fastapi import APIRouter, Query

from segstore.server.control_api.contents import models as m
from segstore.server.control_api.contents.asking import answers
from segstore.server.control_api.controlled import Here
from segstore.server.control_api.problems import ApiProblem, shown
from segstore.server.control_api.steering import Scope, Stream, Transaction, controller_of
from segstore.server.controller import Controller
from segstore.server.controller.state import Stream as KnownStream
from segstore.server.controller.state import TransactionStatus, transaction_epoch

_MOST_MEASURED: Final = 1_000
_LISTED: Final = 100
_PATH: Final = "/streams/{scope}/{stream}/transactions"


router = APIRouter(prefix="/v1")


@router.get(_PATH, tags=["transactions"], summary="The transactions of a stream that have not ended")
async def list_transactions(
    controlled: Here,
    scope: Scope,
    stream: Stream,
    after: Annotated[UUID | None, Query(description="`next` of the previous page.")] = None,
    limit: Annotated[int, Query(ge=1, le=100, description="Maximum number of entries.")] = 20,
) -> m.TransactionPage:
    controller = controller_of(controlled)
    known = controller.streams.get(scope, stream)
    page = nsmallest(
        limit + 1, (transaction for transaction in known.transactions if after is None or transaction > after)
    )
    details = await _details(controller, known, page[:limit])
    return m.TransactionPage(transactions=details, next=str(page[limit - 1]) if len(page) > limit else None)


@router.get(f"{_PATH}/{{transaction}}", tags=["transactions"], summary="A transaction")
async def get_transaction(
    controlled: Here, scope: Scope, stream: Stream, transaction: Transaction
) -> m.TransactionDetails:
    controller = controller_of(controlled)
    details = await _details(controller, controller.streams.get(scope, stream), [transaction])
    if not details:
        raise ApiProblem(404, f"stream {scope}/{stream} has no transaction {transaction}", "path.transaction")
    return details[0]


async def _details(controller: Controller, stream: KnownStream, identifiers: list[UUID]) -> list[m.TransactionDetails]:
    """Returns the transactions that there are, in the given order."""
    names: dict[UUID, list[str]] = {}
    left = _MOST_MEASURED
    for each in identifiers:
        if each in stream.transactions:
            names[each] = [name for _, name in islice(stream.transaction_segments(each), max(left, _LISTED))]
            left = max(0, left - len(names[each]))
    asked = list(islice((name for some in names.values() for name in some), _MOST_MEASURED))
    infos = await answers(controller.segments.segment_length, asked)
    details = (
        _transaction(controller, stream, identifier, names.get(identifier, []), infos) for identifier in identifiers
    )
    return [transaction for transaction in details if transaction is not None]


def _transaction(
    controller: Controller, stream: KnownStream, identifier: UUID, names: list[str], lengths: dict[str, int]
) -> m.TransactionDetails | None:
    status = controller.transactions.status(stream.scope, stream.name, identifier)
    if status is None:
        return None
    known = stream.transactions.get(identifier)
    epoch = transaction_epoch(identifier)
    count = len(stream.epoch(epoch).segments) if known is not None else 0
    now_ms = controller.now_ms()
    is_open = known is not None and status is TransactionStatus.OPEN
    return m.TransactionDetails(
        id=identifier,
        status=status.value,
        opened_ms=None if known is None else known.opened_ms,
        age_ms=None if known is None else now_ms - known.opened_ms,
        lease_left_ms=max(0, known.lease_until_ms - now_ms) if known is not None and is_open else None,
        writer="" if known is None else shown(known.writer),
        epoch=epoch,
        segment_count=count,
        bytes=sum(lengths[name] for name in names) if len(names) == count and lengths.keys() >= set(names) else None,
        segments=[m.TransactionSegment(name=name, length=lengths.get(name)) for name in names[:_LISTED]],
    )
