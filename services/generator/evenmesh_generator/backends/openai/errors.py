"""Tell what an OpenAI-compatible server rejects."""

from __future__ import annotations

import re
from typing import Final

from evenmesh.wire.errors import FailedPrecondition
from evenmesh_kit.remote.errors import Rejected

_TOO_LONG: Final = re.compile(
    r"context[ _-]?(?:length|window|size)|maximum (?:context|model) length|max_model_len|max_seq_len"
    r"|(?:prompt|input)s?\W+(?:is|are) too long|longer than the (?:maximum )?model"
    r"|`inputs` (?:tokens|must have)|exceeds? the (?:available|maximum)",
    re.IGNORECASE,
)
"""Words of vLLM, text-generation-inference, llama.cpp and OpenAI."""


class Withheld(FailedPrecondition):
    """FAILED_PRECONDITION: the server ended an answer by a filter of its own; what it wrote is incomplete."""

    def __init__(self, finish: str) -> None:
        super().__init__("REMOTE_WITHHELD", f"the model server withheld the answer ({finish})")


def is_too_long(error: Rejected) -> bool:
    """Return whether a server says that prompt and answer do not fit into the model's context."""
    return error.said_code == "context_length_exceeded" or _TOO_LONG.search(error.said) is not None
