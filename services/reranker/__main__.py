"""Runs the reranker: ``python -m services.reranker``; settings from ``RAGMESH_RERANKER_…``."""

from __future__ import annotations

import sys
from typing import Protocol

from meshkit import logs, models
from meshkit.admission import Admission
from meshkit.compute import ComputePool
from meshkit.server import Registration, run, serve
from meshkit.settings import SettingsError, load, variable
from meshkit.telemetry import Telemetry
from ragmesh.reranker.v1.feedback_service_pb2_grpc import add_FeedbackServiceServicer_to_server
from ragmesh.reranker.v1.reranker_service_pb2_grpc import add_RerankerServiceServicer_to_server
from services.reranker.backends.rankrag import RankRag
from services.reranker.backends.unconfigured import Unconfigured
from services.reranker.backends.unranked import Unranked
from services.reranker.clients import GeneratorClient
from services.reranker.engine import Reranking
from services.reranker.ports import Reranker
from services.reranker.servicer import FEEDBACK, RERANKER, FeedbackServicer, RerankerServicer
from services.reranker.settings import RerankerSettings


class _Closable(Protocol):
    async def close(self) -> None: ...


class RerankerService:
    """Everything of one reranker process, put together; also its lifecycle.

    Args:
        settings: the settings.
        telemetry: for calls to the generator.
    """

    def __init__(self, settings: RerankerSettings, telemetry: Telemetry) -> None:
        self._settings = settings
        self._telemetry = telemetry
        self._pool = ComputePool(2, "reranker")
        self._codec_pool = ComputePool(1, "reranker-codec")
        self._servicer = RerankerServicer(Admission(settings.max_work, "pairs"), self._codec_pool)
        self._closables: list[_Closable] = []
        feedback = FeedbackServicer(self._servicer)
        self.registrations = [
            Registration(add_RerankerServiceServicer_to_server, self._servicer, RERANKER),
            Registration(add_FeedbackServiceServicer_to_server, feedback, FEEDBACK),
        ]

    async def start(self) -> None:
        """Loads the cross-encoder, if one is set, and opens the channel to the generator.

        Raises:
            SettingsError: the cross-encoder cannot be had; one line that names the setting.
        """
        settings = self._settings
        rerankers: dict[str, Reranker] = {
            "cross-encoder": await self._cross_encoder(),
            "rankrag": RankRag(self._connect()),
            "none": Unranked(),
        }
        self._servicer.open(Reranking(rerankers, settings.default_reranker))

    async def stop(self) -> None:
        """Closes the channel and ends the threads."""
        for one in self._closables:
            await one.close()
        self._pool.close()
        self._codec_pool.close()

    def _connect(self) -> GeneratorClient:
        client = GeneratorClient(
            self._settings.generator_target,
            model=self._settings.rankrag_model,
            model_setting=variable(self._settings, "rankrag_model"),
            template=self._settings.rankrag_template,
            template_setting=variable(self._settings, "rankrag_template"),
            max_message_bytes=self._settings.max_message_bytes,
            telemetry=self._telemetry,
        )
        self._closables.append(client)
        return client

    async def _cross_encoder(self) -> Reranker:
        settings = self._settings
        setting = variable(settings, "cross_encoder")
        if not settings.cross_encoder:
            if settings.default_reranker == "cross-encoder":
                raise SettingsError(f"{variable(settings, 'default_reranker')}=cross-encoder needs {setting}")
            return Unconfigured("cross-encoder", setting)
        # Only a server with a cross-encoder pays for importing torch and sentence-transformers.
        from meshkit.placement import DeviceError
        from services.reranker.backends.cross_encoder import CrossEncoderReranker, from_settings

        try:
            cross_encoder: CrossEncoderReranker = await self._pool.run(from_settings, settings, self._pool)
        except DeviceError as error:
            raise SettingsError(f"{variable(settings, 'device')}={settings.device!r}: {error}") from None
        except models.DownloadsOffError as error:
            allow = variable(settings, "allow_download")
            raise SettingsError(f"{setting}: {error}; {allow}=true fetches it") from None
        except models.ModelError as error:
            raise SettingsError(f"{setting}: {error}") from None
        self._closables.append(cross_encoder)
        return cross_encoder


async def main() -> None:
    """Serves until told to stop."""
    settings = load(RerankerSettings)
    logs.configure("reranker", settings)
    telemetry = Telemetry.from_settings("reranker", settings)
    service = RerankerService(settings, telemetry)
    await serve("reranker", settings, service.registrations, service, telemetry=telemetry)


if __name__ == "__main__":
    sys.exit(run(main))
