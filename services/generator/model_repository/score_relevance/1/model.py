"""P(True) of (question, passage) pairs, batched; all is in services.generator."""

from __future__ import annotations

import json
import site
from collections.abc import Sequence
from typing import TYPE_CHECKING

import triton_python_backend_utils as pb_utils

if TYPE_CHECKING:
    from services.generator.triton.backend import BackendRequest
    from services.generator.triton.judging import JudgingModel


class TritonPythonModel:
    """What Triton's Python backend calls."""

    _model: JudgingModel

    def initialize(self, args: dict[str, str]) -> None:
        """Loads the model."""
        parameters = json.loads(args["model_config"])["parameters"]
        if packages := parameters.get("packages", {}).get("string_value"):
            site.addsitedir(packages)  # behind the backend's own: its NumPy stays the first
        from services.generator.triton.judging import JudgingModel

        self._model = JudgingModel(pb_utils, args)

    def execute(self, requests: Sequence[BackendRequest]) -> list[object]:
        """One response for each request."""
        return self._model.execute(requests)

    def finalize(self) -> None:
        """Ends what runs."""
        self._model.close()
