"""Which Triton models serve the generator's."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from evenmesh_generator.settings import GeneratorSettings, ModelSource
from evenmesh_generator.triton.architecture import is_encoder_decoder
from evenmesh_generator.triton.repository import TritonModelEntry
from evenmesh_generator.triton.settings import TritonSettings
from evenmesh_generator.triton.tensors import RELEVANCE_SUFFIX
from evenmesh_kit.compute import model_files
from evenmesh_kit.settings import SettingsError, variable


def served_models(
    triton: TritonSettings, generator: GeneratorSettings, packages: str
) -> list[TritonModelEntry]:
    """Return the repository's models: each of the generator's, one that judges for it, and encoders.

    Args:
        triton: which encoders besides.
        generator: which models, and how they are run.
        packages: folder of packages their Python needs; empty: none.

    Raises:
        SettingsError: a model cannot be had; one line that names the setting.
    """
    common = _common(triton, generator) | {"packages": packages}
    sources = {source.name: source for source in generator.models}
    served: list[TritonModelEntry] = []
    for name in generator.names:
        template, parameters = _source(sources.get(name), generator)
        parameters = {"model_name": name, **common, **parameters}
        served.append(TritonModelEntry(name, template, parameters))
        served.append(judge(name, packages))
    for name, path in triton.embedders.items():
        encoder = {key: common[key] for key in ("packages", "device", "dtype", "threads")}
        served.append(embedder(name, path, **encoder))
    return served


def language_model(name: str, folder: Path | None, **parameters: str) -> TritonModelEntry:
    """Return the Triton model of a language model.

    Args:
        name: what requests call it.
        folder: where it is; None: the bundled one.
        parameters: values of the template's parameters.

    Raises:
        ModelError: there is no model in the folder.
    """
    template = "encoder_decoder" if folder is None or is_encoder_decoder(folder) else "decoder_only"
    path = "" if folder is None else str(folder.absolute())
    return TritonModelEntry(name, template, {"model_name": name, "model_path": path, **parameters})


def judge(name: str, packages: str) -> TritonModelEntry:
    """Return the Triton model that judges for the language model ``name``, by asking it."""
    return TritonModelEntry(
        name + RELEVANCE_SUFFIX, "score_relevance", {"generating_model": name, "packages": packages}
    )


def embedder(name: str, path: str, **parameters: str) -> TritonModelEntry:
    """Return the Triton model of an encoder; an empty ``path`` is the bundled one."""
    where = str(Path(path).expanduser().absolute()) if path else ""
    return TritonModelEntry(name, "embed", {"model_path": where, **parameters})


def _source(source: ModelSource | None, generator: GeneratorSettings) -> tuple[str, Mapping[str, str]]:
    if source is None:
        return "encoder_decoder", {}
    where = f"{variable(generator, 'models')}: model {source.name!r}"
    try:
        folder = model_files.locate(source.path, allow_download=generator.allow_download)
        served = language_model(source.name, folder)
    except model_files.DownloadsOffError as error:
        allow = variable(generator, "allow_download")
        raise SettingsError(f"{where}: {error}; {allow}=true fetches it") from None
    except model_files.ModelError as error:
        raise SettingsError(f"{where}: {error}") from None
    instruction = "" if source.instruction is None else str(source.instruction).lower()
    settings_ = {"engine": source.engine, "template": source.template, "instruction": instruction}
    return served.template, {**served.parameters, **settings_}


def threads_of(triton: TritonSettings, generator: GeneratorSettings) -> int:
    """Return the threads of one matrix product, [1, inf): as set, or half of the cores."""
    return triton.threads or generator.threads or max(1, (os.cpu_count() or 1) // 2)


def _common(triton: TritonSettings, generator: GeneratorSettings) -> dict[str, str]:
    longest = generator.max_input_tokens
    return {
        "device": generator.device,
        "dtype": generator.dtype,
        "max_input_tokens": "" if longest is None else str(longest),
        "batch_tokens": str(generator.batch_tokens),
        "max_rows": str(generator.max_rows),
        "cache_bytes": str(generator.cache_bytes),
        "templates": "" if generator.templates is None else str(generator.templates.absolute()),
        "workers": str(generator.workers),
        "threads": str(threads_of(triton, generator)),
    }
