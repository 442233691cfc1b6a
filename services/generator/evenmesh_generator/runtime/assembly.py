"""Assemble a running engine from a name, a path and options, the same in every process."""

from __future__ import annotations

from evenmesh_generator.domain import Augmentation
from evenmesh_generator.pointer.settings import MODEL_TYPE
from evenmesh_generator.prompts import TemplateLibrary
from evenmesh_generator.runtime import pointer_engines
from evenmesh_generator.runtime.engine import LanguageEngine
from evenmesh_generator.runtime.options import EngineOptions
from evenmesh_kit.compute import model_files as models
from evenmesh_kit.compute.model_files import ModelError
from evenmesh_kit.compute.placement import Placement

ENGINES = ("auto", "ctranslate2")
"""What may run a transformers model."""


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
    if folder is None or models.model_type(folder) == MODEL_TYPE:
        return pointer_engines.load(name, folder, placement, options)
    if options.template:
        templates.suiting(options.template, Augmentation.IN_PROMPT)
    if options.engine not in ENGINES:
        raise ModelError(f"no engine {options.engine!r}; there are {', '.join(ENGINES)}")
    # transformers takes seconds to import, and the bundled model does without.
    from evenmesh_generator.runtime import transformers_engines

    if options.engine == "ctranslate2":
        return transformers_engines.converted_engine(name, folder, placement.device, templates, options)
    return transformers_engines.load(name, folder, placement, templates, options)
