"""A model of Triton's Python backend that does what no model should; the question says what."""

from __future__ import annotations

import json
import os
import time
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

DESCRIPTION = {
    "name": "odd",
    "version": "v1",
    "engine": "odd",
    "architecture": "Odd",
    "device": "cpu",
    "dtype": "float32",
    "scores_relevance": False,
    "max_input_tokens": 100,
    "max_new_tokens": 100,
    "augmentations": ["retrieval-free"],
    "statistics": {},
}
ANSWER: dict[str, Any] = {
    "text": "fine",
    "finish_reason": "stop",
    "prompt_tokens": 1,
    "completion_tokens": 1,
    "log_probability": -1.0,
    "dropped_passages": 0,
    "cut_passages": 0,
    "dropped_turns": 0,
    "model_version": "v1",
    "cost": "{}",
}
REPLIES: dict[str, list[dict[str, Any]]] = {
    "deltas that do not join": [{"delta": "fi"}, ANSWER],
    "unknown finish reason": [{"delta": "fine"}, ANSWER | {"finish_reason": "tired"}],
    "no counts": [{"delta": "fine"}, {name: ANSWER[name] for name in ("text", "finish_reason")}],
    "cost that is no JSON": [{"delta": "fine"}, ANSWER | {"cost": "{"}],
    "something after the answer": [{"delta": "fine"}, ANSWER, {"delta": "more"}],
    "no answer": [{"delta": "fine"}],
    "nothing": [],
    "a description": [{"description": json.dumps(DESCRIPTION)}],
}
ERRORS = {
    "out of memory": "OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB at /secret/path",
    "stack trace": 'Traceback (most recent call last):\n  File "/secret/path", line 1',
    "own error": json.dumps(
        {
            "code": "INVALID_ARGUMENT",
            "reason": "INVALID_FIELD",
            "message": "is too long",
            "field": "question",
            "retry_after_s": None,
        }
    ),
    "overloaded": json.dumps(
        {
            "code": "RESOURCE_EXHAUSTED",
            "reason": "OVERLOADED",
            "message": "full",
            "field": None,
            "retry_after_s": 2.5,
        }
    ),
}


class TritonPythonModel:
    """What Triton's Python backend calls."""

    def execute(self, requests: Any) -> None:
        """Answers as it is asked to."""
        for request in requests:
            sender = request.get_response_sender()
            question = pb_utils.get_input_tensor_by_name(request, "question").as_numpy()[0].decode()
            if pb_utils.get_input_tensor_by_name(request, "describe") is not None:
                replies = [{"description": json.dumps(DESCRIPTION)}]
            elif question in ERRORS:
                error = pb_utils.TritonError(ERRORS[question])
                sender.send(pb_utils.InferenceResponse(error=error), flags=_FINAL)
                continue
            elif question == "die":
                os._exit(1)
            else:
                if question == "be slow":
                    time.sleep(1.0)
                replies = REPLIES.get(question, [{"delta": "fine"}, ANSWER])
            for reply in replies:
                sender.send(pb_utils.InferenceResponse([_tensor(*item) for item in reply.items()]))
            sender.send(flags=_FINAL)


_FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


def _tensor(name: str, value: str | float) -> Any:
    if isinstance(value, str):
        return pb_utils.Tensor(name, np.array([value.encode()], dtype=object))
    kind = np.float64 if isinstance(value, float) else np.int32
    return pb_utils.Tensor(name, np.array([value], dtype=kind))
