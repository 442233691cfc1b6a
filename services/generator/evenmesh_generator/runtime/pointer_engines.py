"""Engines of pointer models. Where OpenVINO encodes, nothing here needs ``transformers``."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

import torch
from torch import Tensor

import evenmesh_models
from evenmesh_generator.domain import Augmentation, ModelDescription
from evenmesh_generator.pointer import artifact
from evenmesh_generator.pointer.compiled_encoder import CompiledPointerEncoder
from evenmesh_generator.pointer.settings import ArtifactError
from evenmesh_generator.pointer.spans import DECODING, SpanProcessor, Spans
from evenmesh_generator.pointer.tokenization import LONGEST_PAIR, MOST_PAIRS, Block, PairTokenizer
from evenmesh_generator.runtime.decoding.rules import Rules
from evenmesh_generator.runtime.engine import LanguageEngine
from evenmesh_generator.runtime.loops.decoding_loop import DecodingLoop
from evenmesh_generator.runtime.networks.pair_encoders import (
    CompiledPairEncoder,
    TorchPairEncoder,
)
from evenmesh_generator.runtime.networks.pointer import PointerNetwork
from evenmesh_generator.runtime.options import EngineOptions, limits
from evenmesh_generator.runtime.prompts.pair_prompter import PairPrompter
from evenmesh_kit.compute.conversions import Conversions
from evenmesh_kit.compute.cores import usable_cores
from evenmesh_kit.compute.cpu_engine import EngineError, computes, installed_version
from evenmesh_kit.compute.model_files import ModelError, one_line
from evenmesh_kit.compute.placement import Placement
from evenmesh_models import BaseModelError

if TYPE_CHECKING:
    from evenmesh_generator.pointer.configuration import PointerConfig
    from evenmesh_generator.pointer.modeling import PointerForConditionalGeneration

_log = logging.getLogger("evenmesh.generator.runtime")

_ARCHITECTURE: Final = "PointerForConditionalGeneration"


def load(name: str, folder: Path | None, placement: Placement, options: EngineOptions) -> LanguageEngine:
    """Return the engine of the model in a folder, or of the bundled one.

    Raises:
        ModelError: it cannot be loaded, or not encode as the options ask.
    """
    try:
        tokenizer = PairTokenizer(evenmesh_models.minilm())
        folder = evenmesh_models.reader() if folder is None else folder
        network = _compiled(folder, placement, options)
        if network is None:
            return pointer_engine(name, artifact.load(folder), tokenizer, placement, options)
    except (ArtifactError, BaseModelError) as error:
        raise ModelError(one_line(error)) from None
    # The decoder's products are small: a second thread of one costs more time than it saves. Many rows are
    # divided among the cores instead.
    return _engine(name, network, tokenizer, placement, options, threads=1, parts=_parallel(options))


def pointer_engine(
    name: str,
    model: PointerForConditionalGeneration,
    tokenizer: PairTokenizer,
    placement: Placement,
    options: EngineOptions,
) -> LanguageEngine:
    """Return the engine of a pointer model in float32, which encodes and whose weights become what it
    computes in.
    """
    model.to(placement.device).train(False)  # type: ignore[arg-type]
    network = torch_network(
        model, dtype=placement.dtype, batch_tokens=options.batch_tokens, cache_bytes=options.cache_bytes
    )
    return _engine(name, network, tokenizer, placement, options)


def torch_network(
    model: PointerForConditionalGeneration, *, dtype: torch.dtype, batch_tokens: int, cache_bytes: int
) -> PointerNetwork:
    """Return the network of a model in float32 that encodes itself, with PyTorch.

    Args:
        batch_tokens: most padded tokens of a pass.
    """
    weights: Mapping[str, Tensor] = dict(model.named_parameters())
    return PointerNetwork(
        cast("PointerConfig", model.config).settings(),
        weights,
        TorchPairEncoder(model, dtype=dtype, batch_tokens=batch_tokens),
        device=model.device,
        dtype=dtype,
        cache_bytes=cache_bytes,
    )


def _engine(
    name: str,
    network: PointerNetwork,
    tokenizer: PairTokenizer,
    placement: Placement,
    options: EngineOptions,
    *,
    threads: int | None = None,
    parts: int = 1,
) -> LanguageEngine:
    settings = network.settings

    def copying(prompt: int, texts: Sequence[Block]) -> SpanProcessor:
        return SpanProcessor(
            prompt, [Spans(texts)], end=settings.ends[0], abstention=settings.abstention_token_id
        )

    rules = Rules(pad=settings.pad_token_id, ends=settings.ends, copying=copying)
    description = ModelDescription(
        name=name,
        version=f"{str(settings.weights_sha256)[:16]}-{DECODING}",
        engine="pointer",
        architecture=_ARCHITECTURE,
        device=str(placement.device),
        dtype=placement.dtype_name,
        scores_relevance=True,
        max_input_tokens=settings.max_position_embeddings,
        max_passage_tokens=LONGEST_PAIR,
        max_passage_pairs=MOST_PAIRS,
        reads_context=True,
        max_new_tokens=settings.max_position_embeddings - 1,
        augmentations=(
            Augmentation.FUSION_IN_DECODER,
            Augmentation.IN_PROMPT,
            Augmentation.RETRIEVAL_FREE,
        ),
    )
    loop = DecodingLoop(
        name,
        network,
        rules,
        limits(options, placement.device, settings.vocab_size, parts=parts),
        continuous=True,
        threads=threads,
    )
    prompter = PairPrompter(name, tokenizer, settings, limit=LONGEST_PAIR, rows=MOST_PAIRS)
    return LanguageEngine(description, prompter, loop, workers=options.workers)


def _compiled(folder: Path, placement: Placement, options: EngineOptions) -> PointerNetwork | None:
    """Return the network of the model in a folder for which OpenVINO encodes; None if PyTorch does.

    Raises:
        ArtifactError, BaseModelError: the model cannot be read.
        ModelError: the options ask for OpenVINO, which cannot.
    """
    required = options.cpu_engine == "openvino"
    try:
        if options.home is None or not computes(options.cpu_engine, str(placement.device)):
            return None
        if placement.dtype not in (torch.float32, torch.bfloat16):
            raise EngineError(f"OpenVINO encodes in float32 or bfloat16, not in {placement.dtype_name}")
        parallel = _parallel(options)
        read = artifact.read(folder, encodes=False)
        compiled = CompiledPointerEncoder(
            folder,
            read.weights["encoder.embeddings.word_embeddings.weight"].numpy(),
            bfloat16=placement.dtype is torch.bfloat16,
            parallel=parallel,
            conversions=Conversions.of_user(options.home),
        )
    except EngineError as error:
        if required:
            raise ModelError(f"{folder}: {error}") from None
        _log.warning("PyTorch encodes for %s: %s", folder, error)
        return None
    _log.info(
        "OpenVINO %s encodes in %s, on up to %d processors at a time",
        installed_version(),
        placement.dtype_name,
        parallel,
    )
    return PointerNetwork(
        read.settings,
        read.weights,
        CompiledPairEncoder(
            compiled,
            layers=read.settings.decoder_layers,
            heads=read.settings.num_attention_heads,
            dtype=placement.dtype,
        ),
        device=placement.device,
        dtype=placement.dtype,
        cache_bytes=options.cache_bytes,
    )


def _parallel(options: EngineOptions) -> int:
    """Return how many cores compute at a time."""
    return options.parallel or usable_cores()
