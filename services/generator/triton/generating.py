"""A generating model of the repository: one engine, many streams."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import numpy as np
import torch

from services.generator.domain import Normalization, RelevanceRequest
from services.generator.ports import Cancelled
from services.generator.prompts import TemplateLibrary
from services.generator.runtime.assembly import assemble
from services.generator.triton.backend import Backend, BackendRequest, read_inputs
from services.generator.triton.configuration import Configuration, check_numpy
from services.generator.triton.delivery import Delivery, Postman, Watch, told
from services.generator.triton.ending import end_soon
from services.generator.triton.metrics import EngineMetrics
from services.generator.triton.tensors import description_tensors, flag, read_request, texts

_WATCH_S: Final = 0.01


class GeneratingModel:
    """What ``encoder_decoder`` and ``decoder_only`` do: hand requests to the engine and return.

    Args:
        backend: ``triton_python_backend_utils``.
        args: what Triton hands to ``initialize``.

    Raises:
        ConfigurationError: a parameter has a value that is not allowed, or NumPy does not fit the backend.
    """

    def __init__(self, backend: Backend, args: Mapping[str, str]) -> None:
        check_numpy(backend)
        configuration = Configuration.read(args)
        torch.set_num_threads(configuration.integer("threads", torch.get_num_threads()))
        self._backend = backend
        self._decoding = configuration.decoding()
        folder = configuration.text("templates")
        templates = TemplateLibrary.with_folder(Path(folder)) if folder else TemplateLibrary.bundled()
        self._engine = assemble(configuration.served_name, configuration.engine_options(), templates)
        self._judges = ThreadPoolExecutor(1, thread_name_prefix="judge")
        self._postman = Postman(backend)
        self._watch = Watch(backend, _WATCH_S)
        self._metrics = EngineMetrics(backend, configuration.model, self._engine.statistics)

    def execute(self, requests: Sequence[BackendRequest]) -> None:
        """Takes requests; their responses come from other threads."""
        for request in requests:
            delivery = Delivery(
                self._backend,
                request.get_response_sender(),
                self._postman,
                version=self._engine.describe().version,
                on_answer=self._metrics.observe,
            )
            try:
                self._take(request, delivery)
            except Exception as error:  # noqa: BLE001 - told to who asked
                delivery.end(told(error))

    def close(self) -> None:
        """Ends the engine; what still runs ends with UNAVAILABLE."""
        self._engine.close()
        self._judges.shutdown(wait=True, cancel_futures=True)
        self._metrics.close()
        self._watch.close()
        self._postman.close()
        end_soon()

    def _take(self, request: BackendRequest, delivery: Delivery) -> None:
        inputs = read_inputs(request)
        if flag(inputs, "describe"):
            delivery.end(description_tensors(self._engine.describe(), self._engine.statistics()))
            return
        asked = read_request(inputs, self._decoding)
        self._watch.take(delivery)
        if flag(inputs, "judge"):
            kind = Normalization.VOCABULARY if flag(inputs, "over_vocabulary") else Normalization.TRUE_FALSE
            relevance = RelevanceRequest(asked.question, asked.passages, kind, asked.template, asked.turns)
            self._judges.submit(self._judge, relevance, delivery)
        else:
            self._engine.submit(asked, delivery.cancel, delivery)

    def _judge(self, request: RelevanceRequest, delivery: Delivery) -> None:
        try:
            scores = self._engine.judge(request, delivery.cancel)
        except Cancelled:
            delivery.end(Cancelled())
        except Exception as error:  # noqa: BLE001 - told to who asked
            delivery.end(told(error))
        else:
            version = texts([self._engine.describe().version])
            delivery.end({"probability": np.array(scores, dtype=np.float64), "model_version": version})
