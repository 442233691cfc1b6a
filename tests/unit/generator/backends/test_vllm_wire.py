"""Tensors of Triton's vLLM backend: what is asked, and what is read."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from evenmesh_generator.backends.triton import vllm_wire
from evenmesh_generator.backends.triton.vllm_wire import Piece
from evenmesh_generator.backends.triton.wire import MalformedReplyError
from evenmesh_generator.domain import Decoding
from evenmesh_generator.triton.tensors import Tensor, texts


def _plain(tensors: dict[str, Tensor]) -> dict[str, Any]:
    return {name: one.tolist()[0] for name, one in tensors.items()}


def _sampling(tensors: dict[str, Tensor]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(tensors["sampling_parameters"][0])
    return found


def test_a_greedy_request_names_no_seed() -> None:
    asked = vllm_wire.generation("a prompt", Decoding(max_new_tokens=9), {}, frozenset())
    assert _sampling(asked) == {"max_tokens": 9, "temperature": 0.0, "logprobs": 0}
    assert _plain(asked) == {
        "text_input": b"a prompt",
        "stream": True,
        "exclude_input_in_output": True,
        "sampling_parameters": asked["sampling_parameters"][0],
        "return_finish_reason": True,
        "return_cumulative_logprob": True,
        "return_num_output_tokens": True,
    }


def test_a_sampled_request_draws_by_its_seed_and_settings_change_nothing_of_ours() -> None:
    decoding = Decoding(max_new_tokens=9, temperature=0.7, top_p=0.9, seed=2**62, stop=("\n\n",))
    further = {"repetition_penalty": 1.1, "stop": "\nUser:"}
    known = vllm_wire.optional(["text_input", "return_num_input_tokens"])
    asked = vllm_wire.generation("a prompt", decoding, further, known)
    assert _sampling(asked) == {
        "repetition_penalty": 1.1,
        "max_tokens": 9,
        "temperature": 0.7,
        "top_p": 0.9,
        "seed": 2**62,
        "stop": ["\nUser:", "\n\n"],
        "logprobs": 0,
    }
    assert asked["return_num_input_tokens"].tolist() == [True]


def test_a_judgement_asks_for_one_token_with_the_likeliest() -> None:
    asked = vllm_wire.judgement("a prompt", 20, {})
    assert _sampling(asked) == {"max_tokens": 1, "temperature": 0.0, "logprobs": 20}
    assert [name for name in asked if name.startswith("return")] == ["return_logprobs"]


@pytest.mark.parametrize(
    ("inputs", "speaks", "missing", "judges"),
    [
        (("question", "passage_texts"), False, 5, False),
        (("text_input", "stream", "sampling_parameters", "exclude_input_in_output"), True, 3, False),
        (
            (
                "text_input",
                "stream",
                "sampling_parameters",
                "exclude_input_in_output",
                "return_finish_reason",
                "return_cumulative_logprob",
                "return_num_output_tokens",
                "return_logprobs",
            ),
            True,
            0,
            True,
        ),
    ],
    ids=["ours", "before-24.12", "later"],
)
def test_a_model_is_known_by_its_inputs(
    inputs: tuple[str, ...], speaks: bool, missing: int, judges: bool
) -> None:
    assert vllm_wire.speaks(inputs) is speaks
    assert len(vllm_wire.missing(inputs)) == missing
    assert vllm_wire.judges(inputs) is judges


def _outputs(**changed: Tensor | None) -> dict[str, Tensor]:
    outputs: dict[str, Tensor | None] = {
        "text_output": texts(["héllo"]),
        "finish_reason": texts(["None"]),
        "cumulative_logprob": np.array([-1.5], np.float32),
        "num_output_tokens": np.array([2], np.uint32),
        **changed,
    }
    return {name: one for name, one in outputs.items() if one is not None}


def test_pieces_are_read() -> None:
    assert vllm_wire.piece(_outputs()) == Piece("héllo", None, -1.5, 2, None)
    last = _outputs(
        text_output=texts([""]),
        finish_reason=texts(["length"]),
        num_input_tokens=np.array(7, np.uint32),  # the backend sends a number without a dimension
    )
    assert vllm_wire.piece(last) == Piece("", "length", -1.5, 2, 7)


@pytest.mark.parametrize(
    "changed",
    [
        {"text_output": None},
        {"text_output": texts(["two", "answers"])},
        {"text_output": np.array([b"\xff"], object)},
        {"finish_reason": None},
        {"cumulative_logprob": np.array([0.5], np.float32)},
        {"cumulative_logprob": np.array([np.nan], np.float32)},
        {"cumulative_logprob": np.array([-1.5], np.float64)},
        {"num_output_tokens": np.array([1, 2], np.uint32)},
        {"num_output_tokens": np.array([-1], np.int32)},
    ],
)
def test_what_is_no_piece_is_refused(changed: dict[str, Tensor | None]) -> None:
    with pytest.raises(MalformedReplyError):
        vllm_wire.piece(_outputs(**changed))


def _top(*tokens: Any) -> dict[str, Tensor]:
    return {"logprobs": texts([json.dumps(list(tokens))])}


def test_the_likeliest_tokens_are_those_of_the_first_place() -> None:
    true = {"logprob": -0.25, "rank": 1, "decoded_token": " True"}
    false = {"logprob": float("-inf"), "rank": 2, "decoded_token": " False"}
    later = {"7": {"logprob": -0.1, "rank": 1, "decoded_token": "."}}
    found = vllm_wire.top(_top({"5": true, "6": false}, later))
    assert found == {" True": -0.25, " False": float("-inf")}


@pytest.mark.parametrize(
    "outputs",
    [
        {},
        {"logprobs": texts(["null"])},
        {"logprobs": texts(["no JSON"])},
        _top(),
        _top({}),
        _top({"5": {"decoded_token": "True"}}),
        _top({"5": {"logprob": 0.5, "decoded_token": "True"}}),
        _top({"5": {"logprob": float("nan"), "decoded_token": "True"}}),
        {"logprobs": texts(["[" * 100_000])},
    ],
    ids=["none", "null", "text", "nothing", "empty", "number-less", "positive", "nan", "deep"],
)
def test_what_holds_no_log_probabilities_is_refused(outputs: dict[str, Tensor]) -> None:
    with pytest.raises(MalformedReplyError):
        vllm_wire.top(outputs)
