"""Run the online trainer: ``python -m evenmesh_training.online``; settings from ``EVENMESH_TRAINER_…``.

It serves health checks only; ``GetTrainingStatus`` of the reranker reports what it does.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import signal
import socket
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING

from evenmesh.wire.errors import Unavailable
from evenmesh_kit.compute.executors import ComputePool
from evenmesh_kit.compute.tasks import cancel
from evenmesh_kit.process import arguments
from evenmesh_kit.process.serving import run, serve
from evenmesh_kit.process.start import ServerStartError
from evenmesh_kit.rpc.server import Service
from evenmesh_kit.settings import load
from evenmesh_kit.storage.opening import opened
from evenmesh_kit.telemetry import logs
from evenmesh_kit.telemetry.setup import Telemetry
from evenmesh_reranker.backends.sql.database import Database
from evenmesh_reranker.backends.sql.feedback import SqlFeedbackStore
from evenmesh_reranker.backends.sql.leases import SqlLeases
from evenmesh_reranker.backends.sql.trainings import SqlTrainingLog
from evenmesh_reranker.models import opening
from evenmesh_reranker.settings import RerankerSettings
from evenmesh_training.online.clients import RerankerPromoter, RetrieverPassages
from evenmesh_training.online.rounds import Rounds
from evenmesh_training.online.settings import OnlineSettings
from evenmesh_training.online.trainer import Trainer

if TYPE_CHECKING:  # these import torch
    from evenmesh_training.ium.gate import Gate
    from evenmesh_training.online.served import ServedModels

_log = logging.getLogger("evenmesh.trainer")


class TrainerService(Service):
    """The parts of one trainer process and their lifecycle.

    Args:
        settings: settings of the trainer.
        reranker: settings of the reranker it trains for.
        telemetry: records calls to other services.
    """

    def __init__(self, settings: OnlineSettings, reranker: RerankerSettings, telemetry: Telemetry) -> None:
        self._settings = settings
        self._reranker = reranker
        self._pool = ComputePool(1, "trainer")
        self._database = Database(reranker.database(), lock_timeout_s=reranker.lock_timeout_s)
        self._store = SqlFeedbackStore(self._database)
        self._log = SqlTrainingLog(self._database)
        holder = f"{socket.gethostname()}/{os.getpid()}/{secrets.token_hex(8)}"
        self._leases = SqlLeases(self._database, holder, lease_s=settings.lease_s, at_once=settings.at_once)
        self._passages = RetrieverPassages(
            settings.retriever_target,
            retriever=settings.retriever,
            max_message_bytes=settings.max_message_bytes,
            telemetry=telemetry,
        )
        self._promoter = RerankerPromoter(settings.reranker_target, telemetry=telemetry)
        self._models = opening.version_store(reranker, local="trainer-cache")
        self._promotions = opening.promotions(reranker, self._database)
        self._closing: list[Callable[[], Awaitable[None]]] = []

    async def start(self) -> None:
        """Open the database and begin to look for work; a model is loaded only when there is some.

        Raises:
            ServerStartError: the database cannot be used.
        """
        await opened(self._reranker, self._database.open)
        self._closing.append(self._database.close)
        try:
            await opening.adopt(self._reranker, self._database)
        except Unavailable as error:
            await self.stop()
            raise ServerStartError(self._reranker.remedy(error)) from error
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
            served=self._served_models,
            work=self._reranker.home / "reranker" / "training",
            pool=self._pool,
            gate=self._gate,
        )
        trainer = Trainer(
            rounds,
            store=self._store,
            log=self._log,
            leases=self._leases,
            queries=self._settings.queries,
            at_once=self._settings.at_once,
            wake_s=self._settings.wake_s,
        )
        training = asyncio.create_task(trainer.run())
        # A trainer whose loop failed must not look healthy: the supervisor starts another process.
        training.add_done_callback(_end_if_broken)

        self._closing.append(partial(cancel, training))

    async def stop(self) -> None:
        """End the training after its current step, keep its checkpoint, and close all parts."""
        while self._closing:
            await self._closing.pop()()
        self._pool.close()

    def _gate(self) -> Gate:
        from evenmesh_training.ium.gate import Gate  # imports torch

        return Gate.bundled()

    def _served_models(self) -> ServedModels:
        # Imported late: only a trainer with work needs torch.
        from evenmesh_training.online.served import ServedModels

        return ServedModels.from_settings(
            self._settings, self._reranker, self._models, self._promotions, self._pool
        )


def _end_if_broken(training: asyncio.Task[None]) -> None:
    if not training.cancelled() and (error := training.exception()) is not None:
        _log.critical("the training loop failed", exc_info=error)
        os.kill(os.getpid(), signal.SIGTERM)


async def main() -> None:
    """Train until the process is asked to stop."""
    settings, reranker = load(OnlineSettings), load(RerankerSettings)
    logs.configure("trainer", settings)
    if settings.niceness:
        os.nice(settings.niceness)
    telemetry = Telemetry.from_settings("trainer", settings)
    service = TrainerService(settings, reranker, telemetry)
    await serve("trainer", settings, service, telemetry=telemetry)


if __name__ == "__main__":
    arguments.refuse("evenmesh_training.online", OnlineSettings, RerankerSettings)
    sys.exit(run(main))
