"""Assemble a running engine from a name, a path and options, the same in every process."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

import evenmesh_models
from evenmesh_generator.domain import Augmentation, ModelDescription
from evenmesh_generator.pointer import artifact
from evenmesh_generator.pointer.artifact import ArtifactError
from evenmesh_generator.pointer.compiled_encoder import CompiledPointerEncoder
from evenmesh_generator.pointer.configuration import PointerConfig
from evenmesh_generator.pointer.modeling import PointerForConditionalGeneration
from evenmesh_generator.pointer.reader import LONGEST_PAIR, MOST_PAIRS
from evenmesh_generator.pointer.spans import DECODING, SpanProcessor, Spans
from evenmesh_generator.pointer.tokenization import PairTokenizer
from evenmesh_generator.prompts import TemplateLibrary
from evenmesh_generator.runtime import loading
from evenmesh_generator.runtime.decoding.rules import Rules
from evenmesh_generator.runtime.engine import LanguageEngine
from evenmesh_generator.runtime.loops.decoding_loop import DecodingLoop, Limits, SmallPieces
from evenmesh_generator.runtime.networks.attention import ATTENTION
from evenmesh_generator.runtime.networks.causal import CausalNetwork
from evenmesh_generator.runtime.networks.continuous_batching import (
    has_windowed_layers,
    supports_continuous_batching,
)
from evenmesh_generator.runtime.networks.pair_encoders import CompiledPairEncoder
from evenmesh_generator.runtime.networks.pointer import PointerNetwork
from evenmesh_generator.runtime.networks.protocol import Network
from evenmesh_generator.runtime.networks.seq2seq import Seq2SeqNetwork
from evenmesh_generator.runtime.networks.static_batching import StaticCausalNetwork, StaticSeq2SeqNetwork
from evenmesh_generator.runtime.prompts.pair_prompter import PairPrompter
from evenmesh_generator.runtime.prompts.text_prompter import TextPrompter
from evenmesh_kit.compute import model_files as models
from evenmesh_kit.compute.conversions import Conversions
from evenmesh_kit.compute.cores import usable_cores
from evenmesh_kit.compute.cpu_engine import CpuEngine, EngineError, computes, installed_version
from evenmesh_kit.compute.lengths import rows_at_once
from evenmesh_kit.compute.model_files import ModelError, one_line
from evenmesh_kit.compute.placement import Placement
from evenmesh_models import BaseModelError

_log = logging.getLogger("evenmesh.generator.runtime")

ENGINES = ("auto", "ctranslate2")
"""What may run a transformers model."""

_UNBOUNDED_INPUT = 2048
"""Tokens read by a model whose configuration names no limit. Tokens."""

_MOST_NEW_TOKENS = 4096
"""Longest answer of a model whose decoder has no limit of its own. Tokens."""

_CPU_SMALL = SmallPieces(pass_tokens=256, rows=16)
"""A pass and a step of the bundled model that take about 25 and 15 ms of a core with bfloat16."""

_JUDGED_BYTES = 2**27
"""Room on a GPU for the scores, in double precision, of passages that are judged together. Bytes."""

_DOUBLE = 8

_STATE_BYTES = 2**30
"""Room for the running batch of a model on the CPU. Bytes."""


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """How a model is loaded and run.

    Attributes:
        path: folder or hub repository of the model; empty for the bundled one.
        engine: ``auto`` (what suits the model), or ``ctranslate2`` for T5 and Llama shapes.
        template: template of in-prompt augmentation when a request names none; empty: by architecture.
        instruction: whether the model follows instructions; None: if its tokenizer has a chat template.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:<n>``.
        require_gpu: whether the CPU is refused.
        dtype: ``auto``, ``float32``, ``bfloat16`` or ``float16``.
        max_input_tokens: most tokens it reads; None: what its configuration says.
        batch_tokens: most padded tokens of a pass over prompts, [1, inf).
        max_rows: most rows (beams counted) of the running batch, [1, inf).
        cache_bytes: room for encodings of passages and prompts. Bytes, [0, inf); 0 keeps none.
        state_bytes: room for what the running batch has read and written. Bytes, [1, inf); None: 1 GiB on the
            CPU, a third of what is free on a GPU.
        chunk_tokens: most prompt tokens computed between two steps of running answers, [1, inf).
        conversions: where models converted for CTranslate2 are kept; None: the user's cache.
        workers: threads that make prompts, [1, inf).
        allow_download: whether it may be fetched from the hub.
        cpu_engine: what encodes for a pointer model on the CPU; ``auto`` is OpenVINO where it is installed
            and can.
        parallel: pairs that OpenVINO encodes at a time, each on one core, [1, inf); None: one for each core
            that this process may use.
        home: where encoders converted for OpenVINO are kept if the user's cache cannot be written; None:
            PyTorch encodes.
    """

    path: str = ""
    engine: str = "auto"
    template: str = ""
    instruction: bool | None = None
    device: str = "auto"
    require_gpu: bool = False
    dtype: str = "auto"
    max_input_tokens: int | None = None
    batch_tokens: int = 8192
    max_rows: int = 64
    cache_bytes: int = 256 * 2**20
    state_bytes: int | None = None
    chunk_tokens: int = 1024
    conversions: Path | None = None
    workers: int = 1
    allow_download: bool = False
    cpu_engine: CpuEngine = "auto"
    parallel: int | None = None
    home: Path | None = None


def assemble(name: str, options: EngineOptions, templates: TemplateLibrary) -> LanguageEngine:
    """Load one model and return its engine, ready to answer.

    Args:
        name: what requests call the model.

    Raises:
        DeviceError: there is no such device.
        DownloadsOffError: the model is not here, and the hub may not be asked.
        ModelError: the model cannot be had.
        NotFound, InvalidField: ``template`` is no template, or one of another kind.
    """
    folder = models.locate(options.path, allow_download=options.allow_download) if options.path else None
    placement = Placement.choose(options.device, options.dtype, require_gpu=options.require_gpu)
    if folder is None or loading.model_type(folder) == PointerConfig.model_type:
        folder = evenmesh_models.reader() if folder is None else folder
        pointer = _pointer(folder)
        encoder = _compiled(folder, pointer, placement, options)
        pairs = PairTokenizer(evenmesh_models.minilm())
        return pointer_engine(name, pointer, pairs, placement, options, encoder)
    if options.template:
        templates.suiting(options.template, Augmentation.IN_PROMPT)
    if options.engine not in ENGINES:
        raise ModelError(f"no engine {options.engine!r}; there are {', '.join(ENGINES)}")
    if options.engine == "ctranslate2":
        return converted_engine(name, folder, placement.device, templates, options)
    model, tokenizer = loading.load(folder, placement)
    return transformers_engine(name, models.version(folder), model, tokenizer, templates, options)


def pointer_engine(
    name: str,
    model: PointerForConditionalGeneration,
    tokenizer: PairTokenizer,
    placement: Placement,
    options: EngineOptions,
    encoder: CompiledPairEncoder | None = None,
) -> LanguageEngine:
    """Return the engine of a pointer model in float32, whose weights become what it computes in.

    Args:
        encoder: reads the pairs; None: the model itself.
    """
    config = cast(PointerConfig, model.config)
    model.to(placement.device).train(False)  # type: ignore[arg-type]
    network = PointerNetwork(
        model,
        dtype=placement.dtype,
        batch_tokens=options.batch_tokens,
        cache_bytes=options.cache_bytes,
        encoder=encoder,
    )
    ends = _ids(config.eos_token_id)

    def copying(prompt: int, texts: Sequence[Sequence[int]]) -> SpanProcessor:
        spans = Spans(texts, tokenizer.joins)
        return SpanProcessor(prompt, [spans], end=ends[0], abstention=config.abstention_token_id)

    rules = Rules(model, pad=config.pad_token_id or 0, ends=ends, copying=copying)
    description = ModelDescription(
        name=name,
        version=f"{str(config.weights_sha256)[:16]}-{DECODING}",
        engine="pointer",
        architecture=type(model).__name__,
        device=str(placement.device),
        dtype=placement.dtype_name,
        scores_relevance=True,
        max_input_tokens=config.max_position_embeddings,
        max_passage_tokens=LONGEST_PAIR,
        max_passage_pairs=MOST_PAIRS,
        max_new_tokens=config.max_position_embeddings - 1,
        augmentations=(
            Augmentation.FUSION_IN_DECODER,
            Augmentation.IN_PROMPT,
            Augmentation.RETRIEVAL_FREE,
        ),
    )
    limits = _limits(options, placement.device, config.vocab_size)
    loop = DecodingLoop(name, network, rules, limits, continuous=True)
    prompter = PairPrompter(name, tokenizer, config, limit=LONGEST_PAIR, rows=MOST_PAIRS)
    return LanguageEngine(description, prompter, loop, workers=options.workers)


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
    limits = _limits(options, model.device, vocabulary)
    loop = DecodingLoop(name, network, rules, limits, continuous=continuous)
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
    return Rules(model, pad=pads[0], ends=ends), prompter, start, description


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


def _compiled(
    folder: Path, model: PointerForConditionalGeneration, placement: Placement, options: EngineOptions
) -> CompiledPairEncoder | None:
    """Return what encodes for a pointer model in a folder; None if PyTorch does.

    Raises:
        ModelError: the options ask for OpenVINO, which cannot.
    """
    required = options.cpu_engine == "openvino"
    try:
        if options.home is None or not computes(options.cpu_engine, str(placement.device)):
            return None
        if placement.dtype not in (torch.float32, torch.bfloat16):
            raise EngineError(f"OpenVINO encodes in float32 or bfloat16, not in {placement.dtype_name}")
        parallel = options.parallel or usable_cores()
        compiled = CompiledPointerEncoder(
            folder,
            cast(Any, model.encoder.embeddings).word_embeddings.weight.detach().numpy(),
            bfloat16=placement.dtype is torch.bfloat16,
            parallel=parallel,
            conversions=Conversions.of_user(options.home),
        )
    except EngineError as error:
        if required:
            raise ModelError(f"{folder}: {error}") from None
        _log.warning("PyTorch encodes for %s: %s", folder, error)
        return None
    model.encoder.layers = torch.nn.ModuleList()  # OpenVINO has them
    _log.info(
        "OpenVINO %s encodes in %s, up to %d pairs at a time",
        installed_version(),
        placement.dtype_name,
        parallel,
    )
    config = cast(PointerConfig, model.config)
    return CompiledPairEncoder(
        compiled,
        layers=len(model.decoder.layers),
        heads=config.num_attention_heads,
        dtype=placement.dtype,
    )


def _pointer(folder: Path) -> PointerForConditionalGeneration:
    try:
        return artifact.load(folder)
    except (ArtifactError, BaseModelError) as error:
        raise ModelError(one_line(error)) from None


def _limits(options: EngineOptions, device: torch.device, vocabulary: int) -> Limits:
    room = options.state_bytes
    if room is None:
        room = torch.cuda.mem_get_info(device)[0] // 3 if device.type == "cuda" else _STATE_BYTES
    judged = rows_at_once(str(device)) or max(1, _JUDGED_BYTES // (_DOUBLE * vocabulary))
    small = _CPU_SMALL if device.type == "cpu" else None
    return Limits(options.max_rows, room, options.batch_tokens, options.chunk_tokens, judged, small)


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
