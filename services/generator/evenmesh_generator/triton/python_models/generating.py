"""A generating model of the repository: one engine, many streams."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
import torch

from evenmesh_generator.domain import Normalization, RelevanceRequest
from evenmesh_generator.ports import Cancelled
from evenmesh_generator.prompts import TemplateLibrary
from evenmesh_generator.runtime.assembly import assemble
from evenmesh_generator.triton.python_models.backend import Backend, BackendRequest, read_inputs
from evenmesh_generator.triton.python_models.configuration import Configuration, check_numpy
from evenmesh_generator.triton.python_models.ending import exit_soon
from evenmesh_generator.triton.python_models.metrics import EngineMetrics
from evenmesh_generator.triton.python_models.response_sender import (
    CancellationPoller,
    ResponseSender,
    ResponseStream,
    sendable,
)
from evenmesh_generator.triton.tensors import description_tensors, flag, read_request, texts

_WATCH_S: Final = 0.01


class GeneratingModel:
    """Implements ``encoder_decoder`` and ``decoder_only``: passes requests to the engine and returns.

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
        self._response_sender = ResponseSender(backend)
        self._watch = CancellationPoller(backend, _WATCH_S)
        self._metrics = EngineMetrics(backend, configuration.model, self._engine.statistics)

    def execute(self, requests: Sequence[BackendRequest]) -> None:
        """Accept requests; their responses come from other threads."""
        for request in requests:
            responses = ResponseStream(
                self._backend,
                request.get_response_sender(),
                self._response_sender,
                version=self._engine.describe().version,
                on_answer=self._metrics.observe,
            )
            try:
                self._take(request, responses)
            except Exception as error:  # noqa: BLE001 - the caller receives it
                responses.end(sendable(error))

    def close(self) -> None:
        """Stop the engine; running requests end with UNAVAILABLE."""
        self._engine.close()
        self._metrics.close()
        self._watch.close()
        self._response_sender.close()
        exit_soon()

    def _take(self, request: BackendRequest, responses: ResponseStream) -> None:
        inputs = read_inputs(request)
        if flag(inputs, "describe"):
            responses.end(description_tensors(self._engine.describe(), self._engine.statistics()))
            return
        asked = read_request(inputs, self._decoding)
        self._watch.take(responses)
        if flag(inputs, "judge"):
            kind = Normalization.VOCABULARY if flag(inputs, "over_vocabulary") else Normalization.TRUE_FALSE
            relevance = RelevanceRequest(
                asked.question, asked.passages, kind, asked.template, asked.turns, asked.tenant
            )
            judged = self._engine.judge(relevance, responses.cancel)
            judged.add_done_callback(partial(self._respond, responses))
        else:
            self._engine.submit(asked, responses.cancel, responses)

    def _respond(self, responses: ResponseStream, judged: Future[list[float]]) -> None:
        error = judged.exception()
        if isinstance(error, Cancelled):
            responses.end(error)
        elif error is not None:
            responses.end(sendable(error))
        else:
            version = texts([self._engine.describe().version])
            probabilities = np.array(judged.result(), dtype=np.float64)
            responses.end({"probability": probabilities, "model_version": version})
