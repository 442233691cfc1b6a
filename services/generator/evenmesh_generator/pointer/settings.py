"""Sizes, tokens and calibration of a pointer model, as its configuration states them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from evenmesh_generator.pointer.confidence import Confidence

MODEL_TYPE: Final = "evenmesh-pointer"
"""What the configuration of a pointer model calls its kind."""
CONFIG: Final = "config.json"
"""File of the configuration."""

_MOST_BIAS: Final = 100.0
"""Largest abstention bias: far beyond it, no float holds its exponential. Nats."""


class ArtifactError(RuntimeError):
    """Raised when a pointer model is incomplete, damaged, or made for other base weights."""


@dataclass(frozen=True, slots=True)
class PointerSettings:
    """What serving a pointer model needs of its configuration.

    :class:`~evenmesh_generator.pointer.configuration.PointerConfig` says what each is.
    """

    vocab_size: int
    hidden_size: int
    encoder_layers: int
    decoder_layers: int
    frozen_layers: int
    num_attention_heads: int
    intermediate_size: int
    max_position_embeddings: int
    layer_norm_eps: float
    pad_token_id: int
    ends: tuple[int, ...]
    answer_token_id: int
    relevance_token_id: int
    true_token_id: int
    false_token_id: int
    abstention_token_id: int
    abstention_bias: float
    confidence: Confidence | None
    base_sha256: str | None
    tokenizer_sha256: str | None
    weights_sha256: str | None

    @classmethod
    def of(cls, stated: Mapping[str, Any]) -> Self:
        """Return the settings that a configuration states.

        Raises:
            ArtifactError: one is missing, of another type, or out of range.
        """
        try:
            ends = stated["eos_token_id"]
            pad = stated["pad_token_id"]
            counts = {name: int(stated[name]) for name in _COUNTS}
            return cls(
                **counts,
                layer_norm_eps=float(stated["layer_norm_eps"]),
                pad_token_id=0 if pad is None else int(pad),
                ends=(int(ends),) if isinstance(ends, int) else tuple(map(int, ends)),
                abstention_bias=_bias(float(stated.get("abstention_bias", 0.0))),
                confidence=_confidence(stated.get("confidence")),
                base_sha256=stated.get("base_sha256"),
                tokenizer_sha256=stated.get("tokenizer_sha256"),
                weights_sha256=stated.get("weights_sha256"),
            )
        except KeyError as error:
            raise ArtifactError(f"{CONFIG} lacks {error.args[0]}") from None
        except (TypeError, ValueError) as error:
            raise ArtifactError(f"{CONFIG}: {error}") from None

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Return the settings of the model in a folder.

        Raises:
            ArtifactError: there is no configuration, or :meth:`of` raises it.
        """
        try:
            stated = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ArtifactError(f"{folder / CONFIG} cannot be read: {error}") from None
        if not isinstance(stated, dict):
            raise ArtifactError(f"{folder / CONFIG} is not an object")
        return cls.of(stated)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of every weight, by its name in the model."""
        size, inner = self.hidden_size, self.intermediate_size
        found: dict[str, tuple[int, ...]] = {
            "encoder.embeddings.word_embeddings.weight": (self.vocab_size, size),
            "encoder.embeddings.position_embeddings.weight": (self.max_position_embeddings, size),
            "encoder.embeddings.token_type_embeddings.weight": (2, size),
            "decoder.task_embeddings.weight": (2, size),
            "head.vocab_bias": (self.vocab_size,),
        }

        def linear(name: str, read: int, written: int) -> None:
            found.update({f"{name}.weight": (written, read), f"{name}.bias": (written,)})

        def norm(name: str) -> None:
            found.update({f"{name}.weight": (size,), f"{name}.bias": (size,)})

        def attention(name: str) -> None:
            for part in ("query", "key", "value"):
                linear(f"{name}.self.{part}", size, size)
            linear(f"{name}.output.dense", size, size)
            norm(f"{name}.output.LayerNorm")

        encoder = [f"encoder.layers.{number}" for number in range(self.encoder_layers)]
        decoder = [f"decoder.layers.{number}" for number in range(self.decoder_layers)]
        for layer in (*encoder, *decoder):
            attention(f"{layer}.attention")
            linear(f"{layer}.intermediate.dense", size, inner)
            linear(f"{layer}.output.dense", inner, size)
            norm(f"{layer}.output.LayerNorm")
        for layer in decoder:
            attention(f"{layer}.crossattention")
        for name in ("encoder.embeddings.LayerNorm", "decoder.norm", "head.norm"):
            norm(name)
        for name in ("encoder.copy_key", "head.transform", "head.copy_query"):
            linear(name, size, size)
        linear("head.successor", size, 1)
        linear("head.gate", 2 * size, 1)
        return found

    def is_frozen(self, name: str) -> bool:
        """Return whether a weight is the base model's, and so is not shipped."""
        return name.startswith(
            ("encoder.embeddings.", *(f"encoder.layers.{number}." for number in range(self.frozen_layers)))
        )


_COUNTS: Final = (
    *("vocab_size", "hidden_size", "encoder_layers", "decoder_layers", "frozen_layers"),
    *("num_attention_heads", "intermediate_size", "max_position_embeddings", "answer_token_id"),
    *("relevance_token_id", "true_token_id", "false_token_id", "abstention_token_id"),
)


def _bias(nats: float) -> float:
    """Return an abstention bias; raise ValueError if it is out of range."""
    if not -_MOST_BIAS <= nats <= _MOST_BIAS:
        raise ValueError(f"abstention_bias must be in [-{_MOST_BIAS:g}, {_MOST_BIAS:g}], is {nats}")
    return nats


def _confidence(stated: Mapping[str, Any] | None) -> Confidence | None:
    """Return a calibration; raise ValueError if it is out of range."""
    try:
        return None if stated is None else Confidence.of(stated)
    except ValueError as error:
        raise ValueError(f"confidence {error}") from None
