"""A Python model of Triton that speaks the tensors of its vLLM backend, around a small model of transformers.

Triton's stub process loads it: it stands where the backend's own ``model.py`` does, which needs vLLM and so a GPU.
Parameters: ``packages``, the folder of torch and transformers; ``path``, the folder of the model; ``ends``, a file to
which it adds a line for every request that is over: ``answered``, ``cancelled`` or ``failed``.
"""

from __future__ import annotations

import json
import site
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

_MOST_LENGTH = 1024
"""vLLM's ``max_model_len``."""


class TritonPythonModel:
    """What Triton's Python backend calls."""

    _model: Any
    _tokenizer: Any

    def initialize(self, args: dict[str, str]) -> None:
        parameters = {
            name: value["string_value"]
            for name, value in json.loads(args["model_config"])["parameters"].items()
        }
        site.addsitedir(parameters["packages"])  # after the backend's own: its NumPy must stay the first
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        torch.set_num_threads(1)
        self._torch = torch
        self._tokenizer = AutoTokenizer.from_pretrained(parameters["path"])
        self._model = AutoModelForCausalLM.from_pretrained(parameters["path"], dtype=torch.float32).eval()
        self._ends = Path(parameters["ends"])
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(4)

    def execute(self, requests: list[Any]) -> None:
        for request in requests:
            self._pool.submit(self._answer, request, request.get_response_sender())

    def finalize(self) -> None:
        self._pool.shutdown()

    def _answer(self, request: Any, sender: Any) -> None:
        final = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
        try:
            with self._torch.inference_mode():
                end = self._write(request, sender)
        except Exception as error:  # noqa: BLE001 - the caller receives it
            end = "failed"
            tensor = pb_utils.Tensor("text_output", np.asarray(["N/A"], dtype=np.object_))
            raised = pb_utils.TritonError(f"Error generating stream: {error}")
            sender.send(pb_utils.InferenceResponse([tensor], error=raised), final)
        with self._lock, self._ends.open("a") as lines:
            lines.write(f"{end}\n")

    def _write(self, request: Any, sender: Any) -> str:
        torch, tokenizer = self._torch, self._tokenizer
        given = {one.name(): one.as_numpy()[0] for one in request.inputs()}
        if not given.get("stream") or not given.get("exclude_input_in_output", True):
            raise ValueError("only streams without their prompt")
        sampling = json.loads(given["sampling_parameters"])
        prompt = tokenizer(given["text_input"].decode(), return_tensors="pt").input_ids
        read = prompt.shape[1]
        if read >= _MOST_LENGTH:
            raise ValueError(
                f"The decoder prompt (length {read}) is longer than the maximum model length of {_MOST_LENGTH}."
            )
        most = min(sampling["max_tokens"], _MOST_LENGTH - read)
        generator = torch.Generator().manual_seed(sampling.get("seed", 0))
        written: list[int] = []
        said, cumulative, cache, fresh = "", 0.0, None, prompt
        while True:
            if sender.is_cancelled():
                error = pb_utils.TritonError("Request was cancelled", pb_utils.TritonError.CANCELLED)
                final = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
                sender.send(pb_utils.InferenceResponse(error=error), final)
                return "cancelled"
            found = self._model(input_ids=fresh, past_key_values=cache, use_cache=True)
            cache, scores = found.past_key_values, found.logits[0, -1].log_softmax(-1)
            token = self._chosen(scores, sampling, generator)
            cumulative += float(scores[token])
            fresh = torch.tensor([[token]])
            ended = token == self._model.generation_config.eos_token_id
            written.append(token)
            finish = "stop" if ended else "length" if len(written) == most else None
            text = tokenizer.decode(written, skip_special_tokens=True)
            if finish is None and text.endswith("\N{REPLACEMENT CHARACTER}"):
                text = said  # the character is not whole yet
            outputs = {
                "text_output": np.asarray([text[len(said) :].encode()], dtype=np.object_),
                "finish_reason": np.asarray([str(finish)], dtype=np.object_),
                "cumulative_logprob": np.asarray([cumulative], dtype=np.float32),
                "num_output_tokens": np.asarray([1], dtype=np.uint32),
                "num_input_tokens": np.asarray([read], dtype=np.uint32),
                "logprobs": np.asarray([self._top(scores, token, sampling).encode()], dtype=np.object_),
            }
            said = text
            asked = {"text_output"} | {name.removeprefix("return_") for name, value in given.items() if value}
            tensors = [pb_utils.Tensor(name, value) for name, value in outputs.items() if name in asked]
            flags = 0 if finish is None else pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
            sender.send(pb_utils.InferenceResponse(tensors), flags)
            if finish is not None:
                return "answered"

    def _chosen(self, scores: Any, sampling: dict[str, Any], generator: Any) -> int:
        if sampling["temperature"] == 0:
            return int(scores.argmax())
        probabilities, tokens = (scores / sampling["temperature"]).softmax(-1).sort(descending=True)
        before = probabilities.cumsum(-1) - probabilities
        kept = probabilities.where(before < sampling.get("top_p", 1.0), 0.0)
        return int(tokens[self._torch.multinomial(kept, 1, generator=generator)])

    def _top(self, scores: Any, token: int, sampling: dict[str, Any]) -> str:
        tokens = {token: None, **dict.fromkeys(scores.topk(sampling["logprobs"]).indices.tolist())}
        order = scores.argsort(descending=True).tolist()
        return json.dumps(
            [
                {
                    one: {
                        "logprob": float(scores[one]),
                        "rank": order.index(one) + 1,
                        "decoded_token": self._tokenizer.decode([one]),
                    }
                    for one in tokens
                }
            ]
        )
