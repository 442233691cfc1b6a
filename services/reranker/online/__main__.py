"""Runs the online trainer: ``python -m services.reranker.online``; settings from ``RAGMESH_TRAINER_…``.

It answers health checks and nothing else; ``GetTrainingStatus`` of the reranker says what it does.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import signal
import socket
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from meshkit import logs
from meshkit.compute import ComputePool
from meshkit.errors import Unavailable
from meshkit.server import ServerStartError, run, serve
from meshkit.settings import load, variable
from meshkit.telemetry import Telemetry
from services.reranker.backends.sql.database import Database
from services.reranker.backends.sql.feedback import SqlFeedbackStore
from services.reranker.backends.sql.leases import SqlLeases
from services.reranker.backends.sql.trainings import SqlTrainingLog
from services.reranker.models.store import ModelStore
from services.reranker.online.clients import RerankerPromoter, RetrieverPassages
from services.reranker.online.rounds import Rounds
from services.reranker.online.settings import OnlineSettings
from services.reranker.online.trainer import Trainer
from services.reranker.settings import RerankerSettings

if TYPE_CHECKING:  # torch
    from services.reranker.online.served import Serving


_log = logging.getLogger("ragmesh.trainer")


class TrainerService:
    """Everything of one trainer process, put together; also its lifecycle.

    Args:
        settings: its own.
        reranker: those of the reranker it trains for.
        telemetry: for calls to other services.
    """

    def __init__(self, settings: OnlineSettings, reranker: RerankerSettings, telemetry: Telemetry) -> None:
        self._settings = settings
        self._reranker = reranker
        self._pool = ComputePool(1, "trainer")
        self._database = Database(reranker.database(), lock_timeout_s=reranker.lock_timeout_s)
        self._store = SqlFeedbackStore(self._database)
        self._log = SqlTrainingLog(self._database)
        holder = f"{socket.gethostname()}/{os.getpid()}/{secrets.token_hex(8)}"
        self._leases = SqlLeases(self._database, holder, lease_s=settings.lease_s)
        self._passages = RetrieverPassages(
            settings.retriever_target, max_message_bytes=settings.max_message_bytes, telemetry=telemetry
        )
        self._promoter = RerankerPromoter(settings.reranker_target, telemetry=telemetry)
        self._models = ModelStore(reranker.home / "reranker" / "models")
        self._closing: list[Callable[[], Awaitable[None]]] = []

    async def start(self) -> None:
        """Opens the database and begins to look for work; no model is loaded before there is some.

        Raises:
            ServerStartError: the database cannot be used.
        """
        try:
            await self._database.open()
        except Unavailable as error:
            name = variable(self._reranker, "database_url" if self._reranker.database_url else "home")
            raise ServerStartError(f"{error.message}: set {name} to a place that can be written") from error
        self._closing.append(self._database.close)
        self._closing.append(self._passages.close)
        self._closing.append(self._promoter.close)
        rounds = Rounds(
            self._settings,
            store=self._store,
            log=self._log,
            leases=self._leases,
            passages=self._passages,
            promoter=self._promoter,
            models=self._models,
            serving=self._serving,
            work=self._reranker.home / "reranker" / "training",
            pool=self._pool,
        )
        trainer = Trainer(
            rounds,
            store=self._store,
            log=self._log,
            leases=self._leases,
            queries=self._settings.queries,
            wake_s=self._settings.wake_s,
        )
        training = asyncio.create_task(trainer.run())
        # A trainer that broke must not look well: the supervisor starts another.
        training.add_done_callback(_end_if_broken)

        async def end() -> None:
            training.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await training

        self._closing.append(end)

    async def stop(self) -> None:
        """Ends the training after its current step, keeps its checkpoint, and closes what is open."""
        while self._closing:
            await self._closing.pop()()
        self._pool.close()

    def _serving(self) -> Serving:
        """Finds and loads what serves. Only a trainer with work pays for importing torch."""
        from services.reranker.online.served import Serving

        return Serving.from_settings(self._settings, self._reranker, self._models)


def _end_if_broken(training: asyncio.Task[None]) -> None:
    if not training.cancelled() and (error := training.exception()) is not None:
        _log.critical("training broke", exc_info=error)
        os.kill(os.getpid(), signal.SIGTERM)


async def main() -> None:
    """Trains until told to stop."""
    settings, reranker = load(OnlineSettings), load(RerankerSettings)
    logs.configure("trainer", settings)
    if settings.niceness:
        os.nice(settings.niceness)
    telemetry = Telemetry.from_settings("trainer", settings)
    service = TrainerService(settings, reranker, telemetry)
    await serve("trainer", settings, [], service, telemetry=telemetry)


if __name__ == "__main__":
    sys.exit(run(main))
