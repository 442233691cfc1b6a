"""What Triton's Python backend loads: every ``1/model.py`` of this repository links here.

The code of the models is in evenmesh_generator; a model's ``config.pbtxt`` names its class.
"""

from __future__ import annotations

import gc
import json
import pkgutil
import site
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import triton_python_backend_utils as pb_utils

if TYPE_CHECKING:
    from evenmesh_generator.triton.python_models.backend import BackendRequest


class TritonPythonModel:
    """What Triton's Python backend calls."""

    _model: Any

    def initialize(self, args: dict[str, str]) -> None:
        """Load the model."""
        parameters = json.loads(args["model_config"])["parameters"]
        if packages := parameters.get("packages", {}).get("string_value"):
            site.addsitedir(packages)  # after the backend's own: its NumPy must stay the first
        gc.disable()  # what the model imports and loads stays: look for no cycles in it
        self._model = pkgutil.resolve_name(parameters["implementation"]["string_value"])(pb_utils, args)
        gc.freeze()
        gc.enable()

    def execute(self, requests: Sequence[BackendRequest]) -> list[object] | None:
        """Return one response for each request; None from a decoupled model, whose responses come later."""
        responses: list[object] | None = self._model.execute(requests)
        return responses

    def finalize(self) -> None:
        """Stop what runs."""
        self._model.close()
