"""Which models answered and ranked in a run, and what they were trained on, by the facts of its journal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from importlib import import_module
from typing import Any, Final

from evenmesh_lab.files.trained_texts import TrainedTexts, find_trained_texts

_VERSION: Final = "version of "
_RERANKER: Final = "reranker of "
_ENDPOINT: Final = "model of "
_CROSS_ENCODER: Final = "cross-encoder"
_SINCE: Final = "what a version promoted since learned"


def involved(facts: Mapping[str, str]) -> dict[str, str]:
    """Return the models of a run with their versions."""
    found: dict[str, str] = {}
    for name, value in facts.items():
        if name.startswith(_VERSION):
            found[name.removeprefix(_VERSION)] = value
        elif name.startswith(_ENDPOINT):
            found[value] = ""
        elif name == "reranker" or name.startswith(_RERANKER):
            kind, _, version = value.partition(" ")
            if kind not in ("", "none"):
                found[kind] = version
    return found


def trained(
    facts: Mapping[str, str], given: Mapping[str, TrainedTexts] | None = None
) -> dict[str, TrainedTexts | None]:
    """Return what each model of a run was trained on; None for one of which that is unknown.

    The bundled reader is recognised by its version, which begins with the digest of its weights; the bundled
    cross-encoder by its name, as its version depends on the machine.

    Args:
        facts: of the run's journal.
        given: trained texts by model, which go before those of the bundled models.
    """
    known = given or {}
    return {name: known.get(name) or _bundled(name, version) for name, version in involved(facts).items()}


def _bundled(name: str, version: str) -> TrainedTexts | None:
    digest, reader, cross_encoder = _shipped()
    if digest and digest in version:
        return reader
    if name == _CROSS_ENCODER and cross_encoder is not None:
        return replace(cross_encoder, unhashed=(*cross_encoder.unhashed, _SINCE))
    return None


@cache
def _shipped() -> tuple[str, TrainedTexts | None, TrainedTexts | None]:
    """Return the digest of the reader's weights, and what it and the cross-encoder were trained on."""
    try:
        models: Any = import_module("evenmesh_models")
    except ImportError:
        return "", None, None
    digest = str(models.fingerprint(models.reader() / models.WEIGHTS))[:16]
    return digest, find_trained_texts(models.reader()), find_trained_texts(models.cross_encoder())
