"""The model that judges: what it holds of the answers of the model that it asks."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from evenmesh_generator.triton.python_models import judging
from evenmesh_generator.triton.python_models.judging import JudgingModel
from evenmesh_generator.triton.tensors import texts

ARGS = {
    "model_name": "tiny.score_relevance",
    "model_config": '{"name": "tiny.score_relevance", "parameters": {"generating_model": {"string_value": "tiny"}}}',
}


class Named:
    """A tensor."""

    def __init__(self, name: str, array: Any) -> None:
        self.name = lambda: name
        self.as_numpy = lambda: array


class Answers:
    """The answers of one call, as the backend iterates over them."""

    def __init__(self, count: int) -> None:
        outputs = [Named("probability", np.full(count, 0.5)), Named("model_version", texts(["v1"]))]
        self._parts = [SimpleNamespace(has_error=lambda: False, output_tensors=lambda: outputs)]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._parts)


class Backend:
    """What of the backend is used, and every answer that was given."""

    __version__ = np.__version__

    def __init__(self) -> None:
        self.given: list[weakref.ref[Answers]] = []
        self.Tensor = Named
        self.InferenceResponse = lambda outputs: outputs

    def InferenceRequest(self, *, inputs: list[Named], **_: Any) -> Any:  # noqa: N802
        def answered(*, decoupled: bool) -> Answers:
            assert decoupled
            made = Answers(len(inputs[1].as_numpy()))
            self.given.append(weakref.ref(made))
            return made

        return SimpleNamespace(exec=answered)


def _request() -> Any:
    inputs = [Named(name, texts(["x"])[:, None]) for name in ("question", "title", "text")]
    return SimpleNamespace(inputs=lambda: inputs)


def test_answers_are_held_until_the_backend_has_released_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its thread releases them without Python's lock: it must never hold the last reference."""
    now = 100.0
    monkeypatch.setattr(judging.time, "monotonic", lambda: now)
    monkeypatch.setattr(judging, "check_numpy", lambda _: None)
    backend = Backend()
    model = JudgingModel(backend, ARGS)  # type: ignore[arg-type]
    for _ in range(3):
        (response,) = model.execute([_request()])
        assert response[0].as_numpy().tolist() == [[0.5]]  # type: ignore[index]
    gc.collect()
    assert all(one() is not None for one in backend.given)
    now += 11.0
    model.execute([_request()])
    gc.collect()
    assert [one() is not None for one in backend.given] == [False, False, False, True]
