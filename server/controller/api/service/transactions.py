"""gRPC methods of transactions."""

from __future__ import annotations

from segstore.server.controller.api import convert
from segstore.server.controller.api.resources import stream_resource
from segstore.server.controller.api.service.caller import READ, UPDATE, Caller, Service
from segstore.server.controller.errors import NotFound
from segstore.server.controller.state import TransactionStatus
from segstore.wire.controller_api import messages as m

_PINGED = {
    None: m.PingTxnStatus.UNKNOWN,
    TransactionStatus.OPEN: m.PingTxnStatus.OK,
    TransactionStatus.COMMITTING: m.PingTxnStatus.COMMITTED,
    TransactionStatus.COMMITTED: m.PingTxnStatus.COMMITTED,
    TransactionStatus.ABORTING: m.PingTxnStatus.ABORTED,
    TransactionStatus.ABORTED: m.PingTxnStatus.ABORTED,
}
"""The answer to a ping, by the transaction's status."""


class TransactionService(Service):
    async def create_transaction(self, request: m.CreateTxnRequest, caller: Caller) -> m.CreateTxnResponse:
        scope, stream = request.streamInfo.scope, request.streamInfo.stream
        token = caller.token(stream_resource(scope, stream), UPDATE)
        identifier, segments = await self._controller.transactions.open(scope, stream, request.lease)
        return m.CreateTxnResponse(
            txnId=convert.from_transaction_id(identifier),
            activeSegments=convert.segment_ranges(scope, stream, segments),
            delegationToken=token,
        )

    async def ping_transaction(self, request: m.PingTxnRequest, caller: Caller) -> m.PingTxnStatus:
        scope, stream = caller.stream(request.streamInfo, UPDATE)
        identifier = convert.to_transaction_id(request.txnId)
        return m.PingTxnStatus(
            status=_PINGED[self._controller.transactions.ping(scope, stream, identifier, request.lease)]
        )

    async def commit_transaction(self, request: m.TxnRequest, caller: Caller) -> None:
        scope, stream = caller.stream(request.streamInfo, UPDATE)
        identifier = convert.to_transaction_id(request.txnId)
        await self._controller.transactions.commit(scope, stream, identifier, request.writerId, request.timestamp)

    async def abort_transaction(self, request: m.TxnRequest, caller: Caller) -> None:
        scope, stream = caller.stream(request.streamInfo, UPDATE)
        await self._controller.transactions.abort(scope, stream, convert.to_transaction_id(request.txnId))

    async def check_transaction_state(self, request: m.TxnRequest, caller: Caller) -> m.TxnState:
        scope, stream = caller.stream(request.streamInfo, READ)
        status = self._controller.transactions.status(scope, stream, convert.to_transaction_id(request.txnId))
        return m.TxnState(state=m.TxnState.UNKNOWN if status is None else m.TxnState.State.Value(status.value))

    async def list_completed_transactions(
        self, request: m.ListCompletedTxnRequest, caller: Caller
    ) -> m.ListCompletedTxnResponse:
        """Returns an empty list for an unknown stream."""
        scope, stream = caller.stream(request.streamInfo, READ)
        try:
            completed = self._controller.transactions.completed(scope, stream)
        except NotFound:
            completed = {}
        return m.ListCompletedTxnResponse(
            response=[
                m.TxnResponse(
                    txnId=convert.from_transaction_id(identifier), status=m.TxnResponse.Status.Value(status.value)
                )
                for identifier, status in completed.items()
            ]
        )
