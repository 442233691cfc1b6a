"""Engines of transformers models."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from evenmesh_generator.domain import Augmentation, ModelDescription
from evenmesh_generator.prompts import TemplateLibrary
from evenmesh_generator.runtime import loading
from evenmesh_generator.runtime.decoding.model_rules import model_rules
from evenmesh_generator.runtime.decoding.rules import Rules
from evenmesh_generator.runtime.engine import LanguageEngine
from evenmesh_generator.runtime.loops.decoding_loop import DecodingLoop
from evenmesh_generator.runtime.networks.attention import ATTENTION
from evenmesh_generator.runtime.networks.causal import CausalNetwork
from evenmesh_generator.runtime.networks.continuous_batching import (
    has_windowed_layers,
    supports_continuous_batching,
)
from evenmesh_generator.runtime.networks.protocol import Network
from evenmesh_generator.runtime.networks.seq2seq import Seq2SeqNetwork
from evenmesh_generator.runtime.networks.static_batching import StaticCausalNetwork, StaticSeq2SeqNetwork
from evenmesh_generator.runtime.options import EngineOptions, limits
from evenmesh_generator.runtime.prompts.text_prompter import TextPrompter
from evenmesh_kit.compute import model_files as models
from evenmesh_kit.compute.model_files import ModelError
from evenmesh_kit.compute.placement import Placement

_UNBOUNDED_INPUT = 2048
"""Tokens read by a model whose configuration names no limit. Tokens."""

_MOST_NEW_TOKENS = 4096
"""Longest answer of a model whose decoder has no limit of its own. Tokens."""


def load(
    name: str, folder: Path, placement: Placement, templates: TemplateLibrary, options: EngineOptions
) -> LanguageEngine:
    """Return the engine of the model in a folder.

    Raises:
        ModelError: it cannot be loaded.
    """
    model, tokenizer = loading.load(folder, placement)
    return transformers_engine(name, models.version(folder), model, tokenizer, templates, options)


def transformers_engine(
    name: str,
    version: str,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    templates: TemplateLibrary,
    options: EngineOptions,
) -> LanguageEngine:
    """Return the engine of a transformers model.

    A trial finds out whether its rows may join a running batch; otherwise it runs in static batches.
    """
    rules, prompter, start, description = _understood(name, version, model, tokenizer, templates, options)
    network, continuous = _network(model, rules.pad, start, description.max_input_tokens, options)
    vocabulary = int(model.config.get_text_config().vocab_size)
    loop = DecodingLoop(
        name, network, rules, limits(options, model.device, vocabulary), continuous=continuous
    )
    return LanguageEngine(description, prompter, loop, workers=options.workers)


def converted_engine(
    name: str, folder: Path, device: torch.device, templates: TemplateLibrary, options: EngineOptions
) -> LanguageEngine:
    """Return the engine of a transformers model that CTranslate2 runs.

    Raises:
        ModelError: CTranslate2 is not installed, or cannot run the model as its settings say.
    """
    try:
        # An optional dependency.
        from evenmesh_generator.runtime.loops.converted_loop import ConvertedLoop
        from evenmesh_generator.runtime.loops.converted_model import ConvertedModel
    except ImportError:
        raise ModelError(
            "CTranslate2 is not installed: in a checkout, pip install './services/generator[ctranslate2]'"
        ) from None
    model, tokenizer = loading.shape(folder)
    version = models.version(folder)
    rules, prompter, _, description = _understood(name, version, model, tokenizer, templates, options)
    if rules.any:
        raise ModelError(
            f"CTranslate2 does not follow the generation settings of {folder}: use another engine"
        )
    encodes = bool(model.config.is_encoder_decoder)
    converted = ConvertedModel(
        folder,
        version,
        tokenizer,
        encodes=encodes,
        dtype=options.dtype,
        device=device,
        threads=torch.get_num_threads(),
        conversions=options.conversions,
        length_penalty=rules.length_penalty,
    )
    description = replace(
        description,
        engine="ctranslate2",
        device=str(device),
        dtype=converted.dtype,
        # It reads one row per question, so passages cannot be put side by side.
        augmentations=tuple(
            one for one in description.augmentations if one is not Augmentation.FUSION_IN_DECODER
        ),
    )
    loop = ConvertedLoop(name, converted, rules, rows=options.max_rows, batch_tokens=options.batch_tokens)
    return LanguageEngine(description, prompter, loop, workers=options.workers)


def _understood(
    name: str,
    version: str,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    templates: TemplateLibrary,
    options: EngineOptions,
) -> tuple[Rules, TextPrompter, int | None, ModelDescription]:
    """Return what a model's configuration says: rules, prompter, decoder start token, description."""
    settings: Any = model.generation_config
    encodes = bool(model.config.is_encoder_decoder)
    ends = _ids(settings.eos_token_id) or _ids(tokenizer.eos_token_id)
    pads = _ids(tokenizer.pad_token_id) or _ids(settings.pad_token_id) or ends or (0,)
    starts = _ids(settings.decoder_start_token_id) or _ids(settings.bos_token_id)
    start = starts[0] if encodes and starts else None
    most_input = longest_input(model, tokenizer, options.max_input_tokens)
    prompter = TextPrompter(
        name,
        tokenizer,
        templates,
        encodes=encodes,
        start=start,
        template=options.template,
        most_input=most_input,
    )
    description = ModelDescription(
        name=name,
        version=version,
        engine="transformers",
        architecture=type(model).__name__,
        device=str(model.device),
        dtype=str(model.dtype).removeprefix("torch."),
        scores_relevance=prompter.verdicts is not None,
        max_input_tokens=most_input,
        max_new_tokens=_most_new(model, most_input),
        augmentations=_augmentations(
            encodes, prompter.chats if options.instruction is None else options.instruction
        ),
    )
    return model_rules(model, pad=pads[0], ends=ends), prompter, start, description


def _network(
    model: PreTrainedModel, pad: int, start: int | None, most_input: int, options: EngineOptions
) -> tuple[Network[Any], bool]:
    """Return the network, and whether it supports continuous batching."""
    kept = {"batch_tokens": options.batch_tokens, "cache_bytes": options.cache_bytes}
    encodes = bool(model.config.is_encoder_decoder)
    usual = model.config._attn_implementation
    if not has_windowed_layers(model.config, most_input) and usual == "sdpa":
        model.set_attn_implementation(ATTENTION)
        network = Seq2SeqNetwork(model, pad=pad, **kept) if encodes else CausalNetwork(model, pad=pad, **kept)
        if supports_continuous_batching(network, model, start):
            network.forget()
            return network, True
        model.set_attn_implementation(usual)
    if encodes:
        return StaticSeq2SeqNetwork(model, pad=pad, **kept), False
    return StaticCausalNetwork(model, pad=pad), False


def _augmentations(encodes: bool, instruction: bool) -> tuple[Augmentation, ...]:
    can = [Augmentation.IN_PROMPT]
    if encodes:
        can.append(Augmentation.FUSION_IN_DECODER)
    can.append(Augmentation.RETRIEVAL_FREE)
    if instruction:
        can += [Augmentation.PARAMETRIC_KNOWLEDGE, Augmentation.COMPRESSION]
    return tuple(can)


def longest_input(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, setting: int | None) -> int:
    """Return the tokens that a model reads: as set, or as tokenizer and configuration say, within its
    positions.
    """
    config = model.config.get_text_config()
    most = setting
    if most is None:
        named = (getattr(config, "n_positions", None), tokenizer.model_max_length)
        # A tokenizer without a limit states a huge one.
        most = min((limit for limit in named if limit and limit < 2**31), default=_UNBOUNDED_INPUT)
    positions = getattr(config, "max_position_embeddings", None)
    return int(min(most, positions) if positions else most)


def _most_new(model: PreTrainedModel, most_input: int) -> int:
    if not model.config.is_encoder_decoder:
        return min(_MOST_NEW_TOKENS, most_input - 1)
    positions = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    return min(_MOST_NEW_TOKENS, positions - 1) if positions else _MOST_NEW_TOKENS


def _ids(value: int | list[int] | None) -> tuple[int, ...]:
    return () if value is None else (value,) if isinstance(value, int) else tuple(value)
