"""``score_relevance``: P(True) of (question, passage) pairs, batched over callers.

The model that writes judges too, and its weights are loaded once: this one gathers pairs, as Triton's
dynamic batching hands them over, and asks it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from evenmesh.wire.errors import InvalidField, MeshError
from evenmesh_generator.triton.python_models.backend import Backend, BackendRequest, read_inputs, response
from evenmesh_generator.triton.python_models.configuration import Configuration, check_numpy
from evenmesh_generator.triton.python_models.ending import exit_soon
from evenmesh_generator.triton.python_models.response_sender import sendable, triton_error
from evenmesh_generator.triton.tensors import Tensor, read_error, read_texts, texts

_HELD_S: Final = 10.0
"""How long answers of the generating model are held. Seconds."""


@dataclass(frozen=True, slots=True)
class _Pair:
    """One row of one request."""

    question: str
    title: str
    text: str
    template: str
    tenant: str
    over_vocabulary: bool

    @property
    def alike(self) -> tuple[str, str, str, bool]:
        """Return what pairs have in common that can be judged together."""
        return self.question, self.template, self.tenant, self.over_vocabulary


@dataclass(slots=True)
class _Group:
    """Passages of one question, and where their judgements go."""

    pairs: list[_Pair] = field(default_factory=list)
    places: list[tuple[int, int]] = field(default_factory=list)


class JudgingModel:
    """Implements ``score_relevance``.

    Args:
        backend: ``triton_python_backend_utils``.
        args: what Triton hands to ``initialize``.

    Raises:
        ConfigurationError: a parameter has a value that is not allowed, or NumPy does not fit the backend.
    """

    def __init__(self, backend: Backend, args: Mapping[str, str]) -> None:
        check_numpy(backend)
        self._backend = backend
        self._generating = Configuration.read(args).required("generating_model")
        self._held: deque[tuple[float, object]] = deque()

    def execute(self, requests: Sequence[BackendRequest]) -> list[object]:
        """Return one response for each request, in order."""
        groups: dict[tuple[str, str, str, bool], _Group] = {}
        outcomes: list[list[float] | MeshError] = []
        for at, request in enumerate(requests):
            try:
                pairs = _pairs(read_inputs(request))
            except Exception as error:  # noqa: BLE001 - the caller receives it
                outcomes.append(sendable(error))
                continue
            outcomes.append([0.0] * len(pairs))
            for row, pair in enumerate(pairs):
                group = groups.setdefault(pair.alike, _Group())
                group.pairs.append(pair)
                group.places.append((at, row))
        version = ""
        for group in groups.values():
            try:
                scores, version = self._judge(group.pairs)
            except Exception as error:  # noqa: BLE001 - the caller receives it
                for at, _ in group.places:
                    outcomes[at] = sendable(error)
                continue
            for (at, row), score in zip(group.places, scores, strict=True):
                outcome = outcomes[at]
                if not isinstance(outcome, MeshError):
                    outcome[row] = score
        return [self._response(outcome, version) for outcome in outcomes]

    def close(self) -> None:
        """End the process."""
        exit_soon()

    def _judge(self, pairs: Sequence[_Pair]) -> tuple[list[float], str]:
        question, template, tenant, over_vocabulary = pairs[0].alike
        inputs: dict[str, Tensor] = {
            "question": texts([question]),
            "passage_titles": texts([pair.title for pair in pairs]),
            "passage_texts": texts([pair.text for pair in pairs]),
            "judge": np.array([True]),
            "over_vocabulary": np.array([over_vocabulary]),
        }
        if template:
            inputs["template"] = texts([template])
        if tenant:
            inputs["tenant"] = texts([tenant])
        asked = self._backend.InferenceRequest(
            model_name=self._generating,
            requested_output_names=["probability", "model_version"],
            inputs=[self._backend.Tensor(name, array) for name, array in inputs.items()],
        )
        found: dict[str, Tensor] = {}
        answers = asked.exec(decoupled=True)
        self._hold(answers)
        for part in answers:
            if part.has_error():
                said = part.error().message()
                raise read_error(said) or RuntimeError(said)
            found |= {tensor.name(): tensor.as_numpy() for tensor in part.output_tensors()}
        return found["probability"].tolist(), read_texts(found["model_version"], "model_version")[0]

    def _hold(self, answers: object) -> None:
        """Hold answers until the Python backend has released its reference to them.

        It does so in a thread of its own, without Python's global lock. Were that the last reference, the
        thread would destroy arrays while this one runs Python, and the process would crash, rarely.
        """
        now = time.monotonic()
        while self._held and now - self._held[0][0] > _HELD_S:
            self._held.popleft()
        self._held.append((now, answers))

    def _response(self, outcome: list[float] | MeshError, version: str) -> object:
        if isinstance(outcome, MeshError):
            return self._backend.InferenceResponse(error=triton_error(self._backend, outcome))
        outputs: dict[str, Tensor] = {
            "probability": np.array(outcome, dtype=np.float64)[:, None],
            "model_version": texts([version] * len(outcome))[:, None],
        }
        return response(self._backend, outputs)


def _pairs(inputs: Mapping[str, Tensor]) -> list[_Pair]:
    rows = len(inputs["question"])
    columns: list[list[Any]] = [read_texts(inputs[name], name) for name in ("question", "title", "text")]
    for name in ("template", "tenant"):
        columns.append(read_texts(inputs[name], name) if name in inputs else [""] * rows)
    over = inputs.get("over_vocabulary")
    columns.append([False] * rows if over is None else over.reshape(-1).astype(bool).tolist())
    for column in columns:
        if len(column) != rows:
            raise InvalidField("text", "question, title and text have as many rows as each other")
    return [_Pair(*row) for row in zip(*columns, strict=True)]
