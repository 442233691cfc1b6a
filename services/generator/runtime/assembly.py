"""From a name, a path and options to an engine that runs: the same for every process that hosts models."""

from __future__ import annotations

from dataclasses import dataclass

from meshkit import models
from meshkit.placement import Placement
from services.generator.domain import Augmentation
from services.generator.pointer.configuration import PointerConfig
from services.generator.prompts import TemplateLibrary
from services.generator.runtime import loading
from services.generator.runtime.computed import ComputedModel
from services.generator.runtime.engine import LanguageEngine
from services.generator.runtime.pointer import PointerModel
from services.generator.runtime.transformers import TransformersModel


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """How a model is loaded and run.

    Attributes:
        path: folder or hub repository of the model; empty for the bundled one.
        template: template of in-prompt augmentation when a request names none; empty: by architecture.
        instruction: whether the model follows instructions; None: if its tokenizer has a chat template.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:<n>``.
        dtype: ``auto``, ``float32``, ``bfloat16`` or ``float16``.
        max_input_tokens: reads at most so many tokens; None: what its configuration says.
        batch_tokens: most padded tokens of a batch, [1, inf).
        max_rows: most rows (beams counted) of the running batch, [1, inf).
        cache_bytes: room for encodings of passages and prompts. Bytes, [0, inf); 0 keeps none.
        workers: requests computed at the same time by an engine without a running batch, [1, inf).
        allow_download: whether the hub may be asked for it.
    """

    path: str = ""
    template: str = ""
    instruction: bool | None = None
    device: str = "auto"
    dtype: str = "auto"
    max_input_tokens: int | None = None
    batch_tokens: int = 8192
    max_rows: int = 64
    cache_bytes: int = 256 * 2**20
    workers: int = 1
    allow_download: bool = False


def assemble(name: str, options: EngineOptions, templates: TemplateLibrary) -> LanguageEngine:
    """The engine of one model, ready to answer.

    Args:
        name: what requests call the model.

    Raises:
        DeviceError: there is no such device.
        DownloadsOffError: the model is not here, and the hub may not be asked.
        ModelError: the model cannot be had.
        NotFound, InvalidField: ``template`` is no template, or one of another kind.
    """
    return LanguageEngine(_model(name, options, templates), workers=options.workers)


def _model(name: str, options: EngineOptions, templates: TemplateLibrary) -> ComputedModel:
    folder = models.locate(options.path, allow_download=options.allow_download) if options.path else None
    if folder is None or loading.model_type(folder) == PointerConfig.model_type:
        dtype = Placement.choose("cpu", options.dtype).dtype
        return PointerModel.from_folder(name, folder, dtype=dtype, batch_tokens=options.batch_tokens)
    if options.template:
        templates.suiting(options.template, Augmentation.IN_PROMPT)
    model, tokenizer = loading.load(folder, Placement.choose(options.device, options.dtype))
    return TransformersModel(
        name,
        models.version(folder),
        model,
        tokenizer,
        templates,
        instruction=options.instruction,
        template=options.template,
        max_input_tokens=options.max_input_tokens,
        batch_tokens=options.batch_tokens,
    )
