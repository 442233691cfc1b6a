"""Models converted for CTranslate2: eight-bit weights and a decoder without Python, for T5 and Llama shapes.

Conversion happens once per model and number type, offline, from the transformers folder; the result is kept,
in the user's cache by default. It takes as much room as the weights of its number type.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import ctranslate2
import numpy as np
import torch
from ctranslate2.converters import TransformersConverter
from platformdirs import user_cache_path
from scipy.special import log_softmax
from transformers import PreTrainedTokenizerBase

from evenmesh_generator.runtime.networks.protocol import Prompt
from evenmesh_kit.compute.model_files import ModelError, one_line

OnToken = Callable[[int, int, float], bool]
"""Receives each token: row, token, log-probability in nats; returns True to end the row."""

COMPUTE_TYPES: Final = {"auto": "int8", "float32": "float32", "bfloat16": "bfloat16", "float16": "float16"}
"""CTranslate2's number type for each of ours; its eight-bit weights are what it is for."""


@dataclass(frozen=True, slots=True)
class Found:
    """An answer: its tokens, an end token included if there is one, and their log-probability in nats."""

    ids: tuple[int, ...]
    log_probability: float


class ConvertedModel:
    """A converted model; one call at a time.

    Args:
        folder: of the transformers model.
        name: names the conversion in the cache: the model's version.
        dtype: ``auto`` (eight-bit weights), ``float32``, ``bfloat16`` or ``float16``.
        device: where it computes.
        threads: of one matrix product.
        conversions: where converted models are kept; None: the user's cache.
        length_penalty: of beam search.

    Raises:
        ModelError: CTranslate2 cannot convert or run it.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        tokenizer: PreTrainedTokenizerBase,
        *,
        encodes: bool,
        dtype: str,
        device: torch.device,
        threads: int,
        conversions: Path | None = None,
        length_penalty: float,
    ) -> None:
        self._tokenizer: Any = tokenizer
        self._encodes = encodes
        self._penalty = length_penalty
        self.device = str(device)
        kind: Any = ctranslate2.Translator if encodes else ctranslate2.Generator
        try:
            self._model = kind(
                str(_converted(folder, name, COMPUTE_TYPES[dtype], conversions)),
                device=device.type,
                device_index=device.index or 0,
                compute_type=COMPUTE_TYPES[dtype],
                inter_threads=1,
                intra_threads=threads,
            )
        except (RuntimeError, ValueError) as error:
            raise ModelError(f"CTranslate2 cannot run {folder}: {one_line(error)}") from None

    @property
    def dtype(self) -> str:
        """Return the number type it computes with, as CTranslate2 names it."""
        return str(self._model.compute_type)

    def write(
        self, prompts: Sequence[Prompt], *, beams: int, most_tokens: int, on_token: OnToken | None = None
    ) -> list[Found]:
        """Return greedy answers, reported token by token, or those of beam search."""
        kept: dict[str, Any] = {"beam_size": beams, "length_penalty": self._penalty, "return_scores": True}
        if on_token is not None:
            mesh_error = on_token
            kept["callback"] = lambda step: mesh_error(step.batch_id, step.token_id, step.log_prob)
        results = self._run(prompts, most_tokens, return_end_token=True, **kept)
        found = []
        for result in results:
            tokens = result.hypotheses[0] if self._encodes else result.sequences[0]
            ids = tuple(self._tokenizer.convert_tokens_to_ids(tokens))
            # Its score is the sum of log-probabilities over the length to the power of the penalty.
            found.append(Found(ids, result.scores[0] * len(ids) ** self._penalty))
        return found

    def first_log_probs(self, prompts: Sequence[Prompt], tokens: Sequence[int]) -> list[list[float]]:
        """Return the log-probabilities of ``tokens`` as the first new one, per prompt."""
        results = self._run(prompts, 1, return_logits_vocab=True, beam_size=1)
        # Scores of steps that forced a longer prompt's rest precede those of the one new token.
        scores = [log_softmax(np.asarray(one.logits[0][-1], dtype=np.float64)) for one in results]
        return [[float(one[token]) for token in tokens] for one in scores]

    def _run(self, prompts: Sequence[Prompt], most_tokens: int, **kept: Any) -> list[Any]:
        rows = [self._tokenizer.convert_ids_to_tokens(list(prompt.rows[0])) for prompt in prompts]
        if not self._encodes:
            found: list[Any] = self._model.generate_batch(
                rows, max_length=most_tokens, include_prompt_in_result=False, **kept
            )
            return found
        # What a decoder starts with, its start token left out, is forced, and counts as written.
        before = [self._tokenizer.convert_ids_to_tokens(list(prompt.start[1:])) for prompt in prompts]
        return list(
            self._model.translate_batch(
                rows,
                target_prefix=before if any(before) else None,
                max_decoding_length=most_tokens + max(map(len, before), default=0),
                max_input_length=0,
                **kept,
            )
        )


def _converted(folder: Path, name: str, compute_type: str, home: Path | None) -> Path:
    """Return the conversion of a model; convert it if needed."""
    home = home or user_cache_path("evenmesh") / "ctranslate2"
    kept = home / f"{name}-{compute_type}-{version('ctranslate2')}"
    if (kept / "model.bin").is_file():
        return kept
    kept.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(dir=kept.parent))
    try:
        TransformersConverter(str(folder)).convert(str(made / "model"), quantization=compute_type)
        # Another process may have been faster: its conversion is the same.
        with contextlib.suppress(OSError):
            os.replace(made / "model", kept)  # noqa: PTH105 - a folder over none
    except (ValueError, AttributeError, KeyError, RuntimeError, OSError) as error:
        raise ModelError(f"CTranslate2 cannot convert {folder}: {one_line(error)}") from None
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return kept
