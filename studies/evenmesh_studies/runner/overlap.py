"""Which models answered and ranked in a run, and what they were trained on."""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from evenmesh_lab.files import FileError
from evenmesh_lab.files.trained_texts import TRAINED_TEXTS, TrainedTexts, find_trained_texts
from evenmesh_lab.studies.overlap import Overlap, measure

if TYPE_CHECKING:
    from evenmesh import Client

K = TypeVar("K", bound=Hashable)

MOST_PASSAGES: Final = 100_000
"""Most passages of a collection that are compared."""

_VERSION: Final = "version of "
_RERANKER: Final = "reranker of "
_ENDPOINT: Final = "model of "
_CROSS_ENCODER: Final = "cross-encoder"
_SINCE: Final = "what a version promoted since learned"


def involved(facts: Mapping[str, str]) -> dict[str, str]:
    """Return the models of a run with their versions, by the facts of its journal."""
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


def read_given(options: Sequence[str] | None, problems: list[str]) -> dict[str, TrainedTexts]:
    """Return what ``--trained-on NAME=FOLDER`` says by model; add what is wrong with it to ``problems``."""
    found: dict[str, TrainedTexts] = {}
    for option in options or ():
        name, given, folder = option.partition("=")
        if not given or not name or not folder:
            problems.append(f"--trained-on {option}: allowed: MODEL=FOLDER, such as mine=runs/one/model")
            continue
        try:
            texts = find_trained_texts(Path(folder))
        except FileError as error:
            problems.append(f"--trained-on {name}: {error}")
            continue
        if texts is None:
            problems.append(f"--trained-on {name}: {folder} has no {TRAINED_TEXTS}; evenmesh train writes it")
        else:
            found[name] = texts
    return found


def collection_texts(client: "Client", collection: str | None) -> list[str] | None:
    """Return the texts of a collection's passages.

    Returns:
        None where no collection is named, or it has more than :data:`MOST_PASSAGES`.

    Raises:
        MeshError: the collection cannot be read.
    """
    if collection is None:
        return None
    found: list[str] = []
    for passage in client.passages(collection):
        if len(found) == MOST_PASSAGES:
            return None
        found.append(passage.text)
    return found


def context_texts(contexts: Iterable[str]) -> list[str]:
    """Return the passages of contexts as records have them: title, line, text, and a blank line between.

    A passage with line breaks of its own is cut into other texts, and so is not found.
    """
    found: dict[str, None] = {}
    for context in contexts:
        for part in context.split("\n\n"):
            first, line, rest = part.partition("\n")
            found[rest if line else first] = None
    return list(found)


def overlap(
    facts: Mapping[str, str],
    questions: Mapping[K, Sequence[str]],
    *,
    given: Mapping[str, TrainedTexts] | None = None,
    passages: Iterable[str] | None = None,
) -> Overlap[K]:
    """Return the overlap of a run's questions and passages with the training of its models."""
    return measure(questions, trained(facts, given), passages)


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
