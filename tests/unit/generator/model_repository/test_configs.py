"""The templates of the model repository, as Triton reads them."""

import ast
import json
import pkgutil
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
from tritonclient.grpc.model_config_pb2 import DataType, ModelConfig
from tritonclient.utils import np_to_triton_dtype

from evenmesh_generator.domain import (
    Answer,
    Augmentation,
    Decoding,
    FinishReason,
    GenerationRequest,
    ModelDescription,
    Passage,
    Turn,
)
from evenmesh_generator.runtime.statistics import EngineStatistics
from evenmesh_generator.triton.repository import read_config
from evenmesh_generator.triton.tensors import (
    Tensor,
    answer_tensors,
    description_tensors,
    request_tensors,
    texts,
)

TEMPLATES = Path(str(resources.files("evenmesh_generator") / "model_repository"))
NAMES = ("encoder_decoder", "decoder_only", "decoder_only_vllm", "score_relevance", "embed")
OURS = tuple(name for name in NAMES if name != "decoder_only_vllm")
GENERATING = ("encoder_decoder", "decoder_only")


def config(name: str) -> ModelConfig:
    return read_config(TEMPLATES / name / "config.pbtxt")


def fits(tensors: dict[str, Tensor], declared: dict[str, tuple[str, tuple[int, ...]]]) -> None:
    """Every tensor is declared with its type and shape."""
    for name, tensor in tensors.items():
        kind, dims = declared[name]
        assert np_to_triton_dtype(tensor.dtype) == kind
        assert all(wanted in (-1, size) for wanted, size in zip(dims, tensor.shape, strict=True)), name


def declared(ports: object) -> dict[str, tuple[str, tuple[int, ...]]]:
    return {
        port.name: (DataType.Name(port.data_type)[5:].replace("STRING", "BYTES"), tuple(port.dims))
        for port in ports  # type: ignore[attr-defined]
    }


def test_there_are_no_others() -> None:
    assert sorted(path.parent.name for path in TEMPLATES.glob("*/config.pbtxt")) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_each_is_called_as_its_folder(name: str) -> None:
    assert config(name).name == name


@pytest.mark.parametrize("name", OURS)
def test_ours_run_on_the_python_backend_where_a_gpu_is_or_is_not(name: str) -> None:
    found = config(name)
    assert found.backend == "python"
    (group,) = found.instance_group
    # The judge computes nothing itself: it asks the generating model, which is where a GPU is.
    assert group.kind == (group.KIND_CPU if name == "score_relevance" else group.KIND_AUTO)
    assert "packages" in found.parameters
    assert isinstance(pkgutil.resolve_name(found.parameters["implementation"].string_value), type)
    module = ast.parse((TEMPLATES / name / "1" / "model.py").read_text(encoding="utf-8"))
    (model,) = (node for node in module.body if isinstance(node, ast.ClassDef))
    assert model.name == "TritonPythonModel"
    methods = {node.name for node in model.body if isinstance(node, ast.FunctionDef)}
    assert methods == {"initialize", "execute", "finalize"}


@pytest.mark.parametrize("name", GENERATING)
def test_generating_models_declare_what_requests_and_answers_hold(name: str) -> None:
    found = config(name)
    assert found.model_transaction_policy.decoupled
    assert found.max_batch_size == 0
    inputs, outputs = declared(found.input), declared(found.output)
    request = GenerationRequest(
        "q",
        (Passage("0", "t", "x"), Passage("1", "t", "y")),
        augmentation=Augmentation.IN_PROMPT,
        template="ra-x",
        decoding=Decoding(num_beams=2, max_new_tokens=3, temperature=0.5, top_p=0.5, seed=4, stop=("z",)),
        turns=(Turn("a", "b"),),
        tenant="acme",
        contextual_question="q x",
    )
    sent = request_tensors(request)
    fits(sent, inputs)
    flags = {"describe", "judge", "over_vocabulary"}
    assert set(inputs) == set(sent) | flags
    assert {port.name for port in found.input if not port.optional} == {"question"}
    description = ModelDescription("m", "v", "e", "a", "cpu", "float32", True, 1, 1, ())
    answered = {
        **answer_tensors(Answer("", FinishReason.STOP, 0, 0, 0.0)),
        **description_tensors(description, EngineStatistics()),
        "delta": texts(["x"]),
        "probability": np.array([0.5, 0.5]),
    }
    fits(answered, outputs)
    assert set(outputs) == set(answered)


def test_encoder_decoders_and_decoder_only_models_are_asked_alike() -> None:
    first, second = (config(name) for name in GENERATING)
    assert (first.input, first.output) == (second.input, second.output)
    assert first.parameters == second.parameters


@pytest.mark.parametrize("name", ["score_relevance", "embed"])
def test_batches_are_made_of_what_waits(name: str) -> None:
    found = config(name)
    assert not found.model_transaction_policy.decoupled
    assert found.max_batch_size > 1
    assert 0 < found.dynamic_batching.max_queue_delay_microseconds <= 5000
    assert all(tuple(port.dims) == (1,) for port in found.input)


def test_the_vllm_variant_is_what_its_backend_takes() -> None:
    found = config("decoder_only_vllm")
    assert found.backend == "vllm"
    assert found.model_transaction_policy.decoupled  # the backend insists on it
    assert found.max_batch_size == 0
    (group,) = found.instance_group
    assert group.kind == group.KIND_MODEL
    inputs, outputs = declared(found.input), declared(found.output)
    assert inputs["text_input"] == ("BYTES", (1,))
    assert inputs["sampling_parameters"] == ("BYTES", (1,))
    assert {port.name for port in found.input if not port.optional} == {"text_input"}
    assert outputs["text_output"] == ("BYTES", (-1,))
    arguments = json.loads((TEMPLATES / "decoder_only_vllm" / "1" / "model.json").read_text(encoding="utf-8"))
    assert arguments["model"]
    assert 0 < arguments["gpu_memory_utilization"] < 1
