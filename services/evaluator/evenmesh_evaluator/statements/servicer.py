"""The RPCs about single providers: statements, and what providers are owed."""
# ruff: noqa: N802 - names and arguments are the contract's

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from evenmesh.evaluator.v1 import evaluator_service_pb2 as pb
from evenmesh.evaluator.v1 import evaluator_service_pb2_grpc as pb_grpc
from evenmesh.wire import deadline
from evenmesh.wire.errors import FailedPrecondition, InvalidField, NotFound
from evenmesh_evaluator.backends import sql_providers
from evenmesh_evaluator.backends.sql import SqlObservationStore
from evenmesh_evaluator.statements import codec
from evenmesh_evaluator.statements.recent import RecentStatements
from evenmesh_evaluator.statements.signing import Signer
from evenmesh_evaluator.statements.summary import Privacy, Window, state
from evenmesh_kit.compute.tenant_places import TenantPlaces
from evenmesh_kit.compute.tenant_pool import TenantPool
from evenmesh_kit.rpc.handlers import Context
from evenmesh_kit.security import caller as callers
from evenmesh_kit.security.caller import Caller, Role

MAX_PROVIDERS: Final = 10_000
"""Most providers of a balance."""

_BALANCES: Final = 2
"""Most balances that are read at a time, each of which reads all that a collection showed."""
_DAY_US: Final = 24 * 60 * 60 * 10**6
_READERS: Final = frozenset({Role.ASK})
"""Roles that may read the statements of every provider of their tenant."""


class StatementsServicer(pb_grpc.EvaluatorServiceServicer):
    """Serves signed statements and balances.

    Args:
        store: what is known of providers.
        pool: threads that compute statements; they should yield the processors to those of asks.
        signer: signs statements; None where there is no key.
        privacy: what statements keep to themselves; the noise's secret comes from the signer.
        clock: the time. Microseconds since 1970.
    """

    def __init__(
        self,
        store: SqlObservationStore,
        *,
        pool: TenantPool,
        signer: Signer | None,
        privacy: Privacy,
        clock: Callable[[], int] = lambda: time.time_ns() // 1000,
    ) -> None:
        self._store = store
        self._statements_pool = pool
        self._recent = RecentStatements()
        self._balance_places = TenantPlaces(_BALANCES, share=0.5, where="the database of observations")
        self._signer = signer
        self._privacy = privacy
        self._clock = clock

    async def GetExposureStatement(
        self, request: pb.GetExposureStatementRequest, context: Context
    ) -> pb.GetExposureStatementResponse:
        """Return what one provider deserved and was given, signed."""
        caller = callers.current()
        name = codec.provider(request.provider or caller.provider)
        nonce = codec.nonce(request.nonce)
        now_us, private = self._clock(), self._privacy.epsilon is not None
        # The noise of a day is drawn for what the day holds in the end.
        window = codec.window(request, newest=now_us // _DAY_US - int(private))
        if not name:
            raise InvalidField("provider", "must name a provider")
        if self._signer is None:
            raise FailedPrecondition(
                "NO_SIGNING_KEY",
                "the evaluator has no key to sign statements with: have the operator set "
                "EVENMESH_EVALUATOR_STATEMENT_KEY",
            )
        if not _may_read(caller, name):
            raise _no_provider()
        secret = self._signer.secret
        draft = await self._recent.get(
            caller.tenant,
            (name, window.first_day, window.last_day, secret),
            lambda: self._draft(caller.tenant, name, window, replace(self._privacy, secret=secret)),
        )
        if draft is None:
            raise _no_provider()
        return pb.GetExposureStatementResponse(envelope=self._signer.sign(draft.issued(nonce, now_us)))

    async def _draft(self, tenant: str, name: str, window: Window, privacy: Privacy) -> codec.Draft | None:
        days = await self._store.provider_days(
            tenant, name, first_day=window.first_day, last_day=window.last_day
        )
        if len(days) > sql_providers.MAX_DAYS:
            most = f"{sql_providers.MAX_DAYS:,} days of its configurations together"
            raise InvalidField("first_day", f"must be later: the window has more than {most}")
        if not days and privacy.epsilon is None:
            return None

        def written() -> codec.Draft:
            return codec.draft(tenant, name, window, state(tenant, name, window, days, privacy), privacy)

        return await self._statements_pool.run(written)

    async def GetExposureBalance(
        self, request: pb.GetExposureBalanceRequest, context: Context
    ) -> pb.GetExposureBalanceResponse:
        """Return what the providers of a collection are owed."""
        collection, half_life_days = codec.collection(request.collection), codec.half_life(request)
        async with self._balance_places.hold(deadline.current()):
            providers = await self._store.balance(
                callers.current().tenant, collection, half_life_days=half_life_days, limit=MAX_PROVIDERS
            )
        return codec.balance(providers, self._clock())

    async def ResetExposureBalance(
        self, request: pb.ResetExposureBalanceRequest, context: Context
    ) -> pb.ResetExposureBalanceResponse:
        """Forget what the providers of a collection are owed."""
        collection = codec.collection(request.collection)
        count = await self._store.reset_balance(callers.current().tenant, collection)
        return pb.ResetExposureBalanceResponse(num_providers=count)


def _may_read(caller: Caller, provider: str) -> bool:
    """Return whether a caller may know of a provider: by its role any, by its credential its own."""
    return caller.may(_READERS) or caller.provider == provider


def _no_provider() -> NotFound:
    return NotFound("provider", "no ask of these days found a passage of this provider")
