import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from evenmesh_generator.domain import Decoding
from evenmesh_generator.runtime.options import EngineOptions
from evenmesh_generator.triton.python_models.configuration import (
    Configuration,
    ConfigurationError,
    check_numpy,
)


def configuration(kind: str = "CPU", **parameters: str) -> Configuration:
    config = {
        "name": "t5",
        "parameters": {name: {"string_value": value} for name, value in parameters.items()},
    }
    args = {"model_config": json.dumps(config), "model_instance_kind": kind, "model_instance_device_id": "1"}
    return Configuration.read(args)


def test_without_parameters_everything_has_its_default() -> None:
    assert configuration().engine_options() == EngineOptions(device="cpu")
    assert configuration().decoding() == Decoding()
    assert configuration().served_name == "t5"


def test_parameters_count() -> None:
    reported = configuration(
        model_name="flan", model_path="/m", template="ra-x", instruction="true", dtype="bfloat16",
        max_input_tokens="100", batch_tokens="7", max_rows="3", cache_bytes="0", workers="2",
        default_num_beams="4", default_temperature="0.5",
    )  # fmt: skip
    assert reported.served_name == "flan"
    assert reported.decoding() == Decoding(num_beams=4, temperature=0.5)
    assert reported.engine_options() == EngineOptions(
        path="/m", template="ra-x", instruction=True, device="cpu", dtype="bfloat16", max_input_tokens=100,
        batch_tokens=7, max_rows=3, cache_bytes=0, workers=2,
    )  # fmt: skip


def test_a_model_is_where_triton_placed_it_unless_the_place_is_given() -> None:
    assert configuration("GPU").place == "cuda:1"
    assert configuration("GPU", device="auto").place == "cuda:1"
    assert configuration("GPU", device="cpu").place == "cpu"
    assert configuration("CPU", device="cuda:3").place == "cuda:3"


@pytest.mark.parametrize(
    ("name", "value"),
    [("max_rows", "many"), ("instruction", "maybe"), ("max_input_tokens", "x"), ("default_top_p", "half")],
)
def test_a_wrong_parameter_is_named_with_its_value(name: str, value: str) -> None:
    reported = configuration(**{name: value})
    with pytest.raises(ConfigurationError, match=rf"t5: parameter {name}='{value}'"):
        (reported.engine_options(), reported.decoding())


def test_a_parameter_that_must_be_there_is_named() -> None:
    assert configuration(generating_model="t5").required("generating_model") == "t5"
    with pytest.raises(ConfigurationError, match="generating_model is empty"):
        configuration().required("generating_model")


class Tensor:
    """A tensor of a backend that reads arrays, or (``zeroes``) reads them wrongly."""

    zeroes = False

    def __init__(self, name: str, array: Any) -> None:
        self._array = np.zeros_like(array) if self.zeroes else array

    def as_numpy(self) -> Any:
        return self._array


class Zeroes(Tensor):
    zeroes = True


def test_a_numpy_that_the_backend_misreads_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match="does not fit"):
        check_numpy(SimpleNamespace(Tensor=Zeroes))  # type: ignore[arg-type]
    monkeypatch.setattr(np, "__version__", "2.1.0")
    with pytest.raises(ConfigurationError, match=r"2\.1\.0 .* needs numpy 1\.26"):
        check_numpy(SimpleNamespace(Tensor=Tensor))  # type: ignore[arg-type]
    monkeypatch.setattr(np, "__version__", "1.26.4")
    check_numpy(SimpleNamespace(Tensor=Tensor))  # type: ignore[arg-type]
